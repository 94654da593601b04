//! How long a long prompt stalls requests that are decoding, by the size of the chunks that it is prefilled in: JSON lines.
//!
//! Two requests decode on the demo model while a third arrives with a prompt of thousands of tokens. What counts is the
//! longest gap between two tokens of the first one from then on, beside its usual gap.
//!
//!     cargo run --release -p tokenrouter-engine --example bench_stall   (after `trbench models fetch demo`)

use std::time::{Duration, Instant};

use tokenrouter_core::{Request, SamplingParams, StreamEvent};
use tokenrouter_engine::{Config, Engine, TokenStream};

/// Tokens of the long prompt.
const PROMPT: usize = 3000;
/// Tokens that the others write.
const OUTPUT: usize = 1200;
/// Tokens before the long prompt arrives.
const BEFORE: usize = 100;

type Failure = Box<dyn std::error::Error>;

#[allow(clippy::print_stdout, reason = "the output of this program")]
fn main() -> Result<(), Failure> {
    for chunk in [32, 128, 512, 4096] {
        let yaml = format!(
            "models: {{large: {{source: demo, threads: 1, scheduler: {{max_step_tokens: {chunk}}}}}}}\n\
             routing: {{method: random, semantics: mixture}}\nkv: {{prefix_cache: false}}\n"
        );
        let engine = Engine::launch(&Config::from_yaml(&yaml, "bench_stall.yaml")?)?;
        let send = |prompt: usize, max_tokens: usize, key: u64| {
            let tokens = (0..prompt as u32).map(|at| 100 + (at * 7 + key as u32 * 31) % 40_000).collect();
            let sampling = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
            engine.generate(Request::new(tokens, sampling, key))
        };
        let (mut watched, beside) = (send(16, OUTPUT, 0)?, send(16, OUTPUT, 1)?);
        let usual = gaps(&mut watched, BEFORE);
        let arrival = Instant::now();
        let mut long = send(PROMPT, 1, 2)?;
        // Its tokens come as fast as they are written: the channel holds them all.
        let reader = std::thread::spawn(move || {
            while !matches!(long.blocking_next(), None | Some(StreamEvent::Token(_))) {}
            arrival.elapsed()
        });
        let stalled = gaps(&mut watched, OUTPUT - BEFORE - 1);
        let first_token = reader.join().map_err(|_| "the reader panicked")?;
        drop(beside);
        println!(
            r#"{{"chunk": {chunk}, "usual_gap_ms": {:.2}, "longest_gap_ms": {:.2}, "first_token_of_{PROMPT}_ms": {:.0}}}"#,
            ms(middle(usual)),
            ms(stalled.into_iter().max().unwrap_or_default()),
            ms(first_token)
        );
    }
    Ok(())
}

/// Times between the next `count` tokens.
fn gaps(stream: &mut TokenStream, count: usize) -> Vec<Duration> {
    let mut last = None;
    let mut gaps = Vec::new();
    while gaps.len() + 1 < count {
        match stream.blocking_next() {
            Some(StreamEvent::Token(_)) => {
                let now = Instant::now();
                gaps.extend(last.map(|last| now - last));
                last = Some(now);
            }
            Some(StreamEvent::Step(_) | StreamEvent::Logprobs(_)) => {}
            Some(StreamEvent::Finished(..)) | None => break,
        }
    }
    gaps
}

fn middle(mut gaps: Vec<Duration>) -> Duration {
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or_default()
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
