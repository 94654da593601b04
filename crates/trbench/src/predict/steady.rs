//! Throughput in the steady state: a fixed number of requests always in flight, without the ramps of a finite run.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokenrouter_core::emulated::EmulatedModel;
use tokenrouter_core::routing::registry::{self, SystemView};
use tokenrouter_core::scheduler::{CoreConfig, ModelStats, ThresholdTable};
use tokenrouter_core::simulation::{LinkDelay, Simulator};
use tokenrouter_core::{FinishReason, Request, RequestId, SamplingParams, StreamEvent};
use tokenrouter_engine::config::{ModelConfig, ThresholdConfig};
use tokenrouter_engine::{Config, Engine};

use crate::stats::student_interval;

/// How a steady state is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// Time before the measurement.
    pub(super) warmup: Duration,
    /// Time of the measurement; divided into [`PARTS`] parts, whose means give the interval.
    pub(super) measured: Duration,
    /// Tokens of a request; the next one follows at once.
    pub(super) max_tokens: usize,
    /// Tokens of its prompt. The throughput model knows nothing of prompts: short ones keep prefills out.
    pub(super) prompt: usize,
    /// Seed of all draws.
    pub(super) seed: u64,
}

/// Parts of a measured window.
const PARTS: u32 = 10;
/// Prompt tokens when nothing else is asked for.
pub(super) const PROMPT: usize = 16;

/// A measured steady state.
#[derive(Debug, Clone)]
pub(super) struct Steady {
    /// Committed tokens per second.
    pub(super) tok_s: f64,
    /// 95 % interval over the parts of the window.
    pub(super) interval: [f64; 2],
    /// What the models did in the window.
    pub(super) models: Vec<ModelStats>,
}

/// The configuration of one measured point.
pub(super) fn at(config: &Config, requests: usize, thresholds: &[u32]) -> Config {
    let mut config = config.clone();
    config.system.max_active = requests;
    config.batching.thresholds = ThresholdConfig::Fixed(thresholds.to_vec());
    config
}

/// Measures an engine in real time.
pub(super) fn real(config: &Config, requests: usize, window: &Window) -> anyhow::Result<Steady> {
    let engine = Engine::launch(config)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a client")?;
    let tokens = Cell::new(0u64);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let clients = (0..requests as u64).map(|client| client_loop(&engine, client, window, &tokens, stopped.clone()));
    runtime.block_on(async {
        let mut clients = std::pin::pin!(futures_util::future::try_join_all(clients));
        let watch = async {
            tokio::time::sleep(window.warmup).await;
            let before = engine.stats();
            let mut marks = vec![(Instant::now(), tokens.get())];
            for _ in 0..PARTS {
                tokio::time::sleep(window.measured / PARTS).await;
                marks.push((Instant::now(), tokens.get()));
            }
            (before, engine.stats(), marks)
        };
        let (before, after, marks) = tokio::select! {
            done = watch => done,
            ended = &mut clients => bail!("the clients ended early: {:?}", ended.err()),
        };
        let _clients_wait = stop.send(true);
        clients.await?;
        let rates: Vec<f64> =
            marks.windows(2).map(|m| (m[1].1 - m[0].1) as f64 / (m[1].0 - m[0].0).as_secs_f64()).collect();
        let ((start, first), (end, last)) = (marks[0], marks[marks.len() - 1]);
        let tok_s = (last - first) as f64 / (end - start).as_secs_f64();
        let models = after.models.iter().zip(&before.models).map(|(after, before)| after.since(before));
        Ok(Steady { tok_s, interval: around(tok_s, &rates), models: models.collect() })
    })
}

/// One request after the other until told to stop.
pub(super) async fn client_loop(
    engine: &Engine,
    client: u64,
    window: &Window,
    tokens: &Cell<u64>,
    mut stopped: tokio::sync::watch::Receiver<bool>,
) -> anyhow::Result<()> {
    for round in 0.. {
        let key = client + (round << 20);
        let vocab = engine.vocab() as u64;
        // Ordinary token ids, another beginning for every client.
        let prompt =
            (0..window.prompt as u64).map(|i| ((client * 31 + i * 97) % (vocab - 100).max(1) + 64) as u32).collect();
        let sampling = SamplingParams {
            max_tokens: window.max_tokens,
            seed: window.seed,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let mut stream = engine.generate(Request::new(prompt, sampling, key))?;
        loop {
            let event = tokio::select! {
                event = stream.next() => event,
                _ = stopped.wait_for(|stop| *stop) => return Ok(()),
            };
            match event {
                Some(StreamEvent::Token(_)) => tokens.set(tokens.get() + 1),
                Some(StreamEvent::Step(_) | StreamEvent::Logprobs(_)) => {}
                Some(StreamEvent::Finished(FinishReason::Error(message), _)) => bail!(message),
                Some(StreamEvent::Finished(..)) => break,
                None => bail!("the engine stopped"),
            }
        }
    }
    Ok(())
}

fn around(mean: f64, parts: &[f64]) -> [f64; 2] {
    let half = student_interval(parts).map_or(0.0, |[low, high]| (high - low) / 2.0);
    [mean - half, mean + half]
}

/// Measures the same scheduler under the simulator's clock: emulated models only.
pub(super) fn virtual_time(
    config: &Config,
    requests: usize,
    thresholds: &[u32],
    window: &Window,
) -> anyhow::Result<Steady> {
    const VOCAB: u32 = 32_000;
    let names = config.model_names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut view = SystemView::emulated(&names, VOCAB as usize);
    view.entry = config.entry_index();
    let policy = registry::build(&config.routing, &view).map_err(anyhow::Error::msg)?;
    let block_size = config.kv.block_size;
    let blocks = requests * (window.prompt + window.max_tokens).div_ceil(block_size);
    let table = std::sync::Arc::new(ThresholdTable::from_vector(thresholds, requests));
    let core = |model: usize| CoreConfig {
        model,
        models: names.len(),
        entry: view.entry,
        max_active: requests,
        max_batch: requests,
        max_step_tokens: config.models[model].scheduler.max_step_tokens,
        max_wait: Duration::from_secs_f64(config.batching.max_wait_ms / 1e3),
        thresholds: std::sync::Arc::clone(&table),
        kv_blocks: blocks,
        admission_blocks: blocks,
        block_size,
        prefix_cache: false,
        handoff_resume: config.system.handoff_resume,
        alone: false,
        eos: Vec::new(),
        texts: None,
    };
    let model = |model: &ModelConfig| {
        let emulated = model.emulated.as_ref()?;
        let model = EmulatedModel::new(emulated.latency_ms.clone(), VOCAB, blocks, block_size);
        Some(model.with_prefill(emulated.prefill_ms_per_token))
    };
    let models: Option<_> = config.models.values().map(model).collect();
    let models = models.context("`--virtual-time` needs emulated models")?;
    let mut simulator =
        Simulator::new((0..names.len()).map(core).collect(), models, &std::sync::Arc::from(policy), LinkDelay::NONE);
    for key in 0..requests as u64 {
        let sampling = SamplingParams { max_tokens: window.max_tokens, seed: window.seed, ..SamplingParams::default() };
        let prompt = (0..window.prompt as u32).map(|i| i * 97 + key as u32).collect();
        simulator.submit(Duration::ZERO, RequestId(key), Request::new(prompt, sampling, key));
    }
    simulator.run(u64::MAX);
    steady_part(&simulator)
}

/// The time in which all requests were in flight, without the first tenth.
fn steady_part(simulator: &Simulator) -> anyhow::Result<Steady> {
    let outcomes = simulator.outcomes().values();
    let end = outcomes.clone().filter_map(|o| o.finish.as_ref().map(|finish| finish.0)).min().unwrap_or_default();
    let start = end / 10;
    let part = (end - start) / PARTS;
    if part.is_zero() {
        bail!("the run is too short for a steady state");
    }
    let mut counts = vec![0u64; PARTS as usize];
    for (time, _) in outcomes.flat_map(|outcome| &outcome.tokens) {
        if let Some(since) = time.checked_sub(start) {
            let index = (since.as_nanos() / part.as_nanos()) as usize;
            if let Some(count) = counts.get_mut(index) {
                *count += 1;
            }
        }
    }
    let rates: Vec<f64> = counts.iter().map(|count| *count as f64 / part.as_secs_f64()).collect();
    let tok_s = rates.iter().sum::<f64>() / f64::from(PARTS);
    let models = simulator.cores().iter().map(|core| core.stats().clone()).collect();
    Ok(Steady { tok_s, interval: around(tok_s, &rates), models })
}
