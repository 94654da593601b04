//! The demo pair on a GPU, beside the same on the CPU.

use std::time::Instant;

use anyhow::bail;
use serde_json::{Value, json};
use tokenrouter_core::{FinishReason, Request, SamplingParams};
use tokenrouter_engine::config::DeviceConfig;
use tokenrouter_engine::model::locate;
use tokenrouter_engine::{Config, Engine};

use crate::device::{DeviceChoice, place};

const CONFIG: (&str, &str) = ("config/random/demo.yaml", include_str!("../../../../config/random/demo.yaml"));
/// Requests at the same time, tokens of a prompt, and tokens of an answer.
const REQUESTS: usize = 8;
const PROMPT: usize = 32;
const ANSWER: usize = 64;

/// Decodes the same requests on both; says why not where the weights are not here.
pub(super) fn compare(ordinal: usize) -> anyhow::Result<Value> {
    let config = Config::built_in(CONFIG.0, CONFIG.1)?;
    if let Some(why) = config.models.values().find_map(|model| locate(model).err()) {
        return Ok(json!({"skipped": why.to_string()}));
    }
    let cpu = decode(&config, DeviceConfig::Cpu)?;
    let gpu = decode(&config, DeviceConfig::Cuda(ordinal))?;
    // Rounding differs, so that texts may part; from there on they are about something else.
    let alike = |(a, b): (&Vec<u32>, &Vec<u32>)| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let equal: usize = cpu.tokens.iter().zip(&gpu.tokens).map(alike).sum();
    Ok(json!({
        "config": CONFIG.0,
        "requests": REQUESTS,
        "tokens": REQUESTS * ANSWER,
        "cpu_tokens_per_s": cpu.rate(),
        "gpu_tokens_per_s": gpu.rate(),
        "tokens_alike_before_texts_part": equal,
    }))
}

struct Decoded {
    tokens: Vec<Vec<u32>>,
    seconds: f64,
}

impl Decoded {
    fn rate(&self) -> f64 {
        self.tokens.iter().map(Vec::len).sum::<usize>() as f64 / self.seconds
    }
}

fn decode(config: &Config, device: DeviceConfig) -> anyhow::Result<Decoded> {
    let mut config = config.clone();
    place(&mut config, Some(DeviceChoice::Only(device)))?;
    let engine = Engine::launch(&config)?;
    // Once before the measurement: caches are cold, and graphs were never used.
    run(&engine, 1)?;
    run(&engine, REQUESTS)
}

fn run(engine: &Engine, requests: usize) -> anyhow::Result<Decoded> {
    let vocab = engine.vocab() as u32;
    let start = Instant::now();
    let streams = (0..requests as u32).map(|index| {
        let prompt = (0..PROMPT as u32).map(|i| (i * 37 + index * 101 + 1) % vocab).collect();
        let params = SamplingParams { max_tokens: ANSWER, ignore_eos: true, ..SamplingParams::default() };
        Ok(engine.generate(Request::new(prompt, params, u64::from(index)))?)
    });
    let streams = streams.collect::<anyhow::Result<Vec<_>>>()?;
    let mut tokens = Vec::new();
    for stream in streams {
        let (committed, reason, _) = stream.collect_blocking();
        if let FinishReason::Error(why) = reason {
            bail!("a request failed: {why}");
        }
        tokens.push(committed.iter().map(|token| token.id).collect());
    }
    Ok(Decoded { tokens, seconds: start.elapsed().as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_requests_are_decoded_alike_on_the_same_device() {
        let yaml = "models: {a: {emulated: {latency_ms: 0.1}}, b: {emulated: {latency_ms: 0.1}}}\n\
                    routing: {method: random, probability: 0.5}\n";
        let config = Config::from_yaml(yaml, "test").expect("a configuration");
        let [a, b] = [(); 2].map(|()| decode(&config, DeviceConfig::Cpu).expect("decodes"));
        assert_eq!(a.tokens, b.tokens);
        assert_eq!(a.tokens.iter().map(Vec::len).sum::<usize>(), REQUESTS * ANSWER);
        assert!(a.rate() > 0.0);
    }
}
