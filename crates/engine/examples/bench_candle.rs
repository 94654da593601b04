//! Decode and prefill speed of a forward pass on candle tensors on the demo model, for the column of `just bench-cpu`: one JSON line per
//! phase, the median over the steps.
//!
//!     cargo run --release -p tokenrouter-engine --example bench_candle -- MODEL.gguf THREADS [DTYPE...]

use std::sync::Arc;
use std::time::Instant;

use tokenrouter_core::step::Batch;
use tokenrouter_core::{Request, RequestId, SamplingParams};
use tokenrouter_engine::config::{ModelConfig, WeightDtype};
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_testing::candle_oracle::CandleDecoder;

const BLOCK: usize = 32;
/// Steps of a phase, after one that is not counted. Candle's steps are slow, and all alike.
const STEPS: usize = 5;

type Failure = Box<dyn std::error::Error>;

#[allow(clippy::print_stdout, reason = "the output of this program")]
fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, threads, dtypes @ ..] = args.as_slice() else {
        return Err("usage: bench_candle MODEL.gguf THREADS [native|bf16|f32]...".into());
    };
    let threads: usize = threads.parse()?;
    let files = ModelFiles::open(&ModelConfig { path: Some(path.into()), ..ModelConfig::default() })?;
    for (name, dtype) in [("q4_1+q8_0", WeightDtype::Native), ("bf16", WeightDtype::Bf16), ("f32", WeightDtype::F32)] {
        if !dtypes.is_empty() && !dtypes.iter().any(|wanted| wanted == name) {
            continue;
        }
        let phases = [1, 2, 4, 8, 16].map(|batch| ("decode", batch, 16)).into_iter();
        for (phase, batch, ctx) in phases.chain([("prefill", 1, 128), ("prefill", 1, 512)]) {
            let seconds = measure(&files, dtype, threads, (phase == "prefill", batch, ctx))?;
            let tokens = if phase == "prefill" { ctx } else { batch };
            println!(
                r#"{{"phase": "{phase}", "weights": "{name}", "threads": {threads}, "batch": {batch}, "ctx": {ctx}, "tok_s": {:.2}}}"#,
                tokens as f64 / seconds
            );
        }
    }
    Ok(())
}

/// Median seconds of a step.
fn measure(
    files: &ModelFiles,
    dtype: WeightDtype,
    threads: usize,
    (prefill, batch, ctx): (bool, usize, usize),
) -> Result<f64, Failure> {
    let per_row = (ctx + STEPS + 2).div_ceil(BLOCK);
    let kv = (batch * per_row, BLOCK);
    let decoder = CandleDecoder::load(files, dtype, kv)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let sampling = SamplingParams { max_tokens: STEPS + 2, ..SamplingParams::default() };
    let request = Arc::new(Request::new(vec![1], sampling, 0));
    let log: Vec<u32> = (0..ctx + STEPS + 2).map(|at| (at * 7 % files.arch.vocab) as u32).collect();
    let step = |positions: std::ops::Range<usize>| -> Result<f64, Failure> {
        let mut work = Batch::default();
        for row in 0..batch {
            let blocks: Vec<u32> = (row * per_row..(row + 1) * per_row).map(|block| block as u32).collect();
            work.push(RequestId(row as u64), &request, (&log[..positions.end], positions.clone()), &blocks);
        }
        let start = Instant::now();
        pool.install(|| decoder.forward(&work)?.1.argmax(1))?;
        Ok(start.elapsed().as_secs_f64())
    };
    let mut seconds = Vec::new();
    if !prefill {
        step(0..ctx)?;
    }
    for count in 0..=STEPS {
        let positions = if prefill { 0..ctx } else { ctx + count..ctx + count + 1 };
        seconds.push(step(positions)?);
    }
    seconds.remove(0);
    seconds.sort_unstable_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}
