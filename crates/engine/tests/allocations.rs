//! A decode step of the native runner allocates nothing in the steady state. A test binary of its own, because it counts the allocations of the whole process' thread.

use std::sync::Arc;

use tokenrouter_core::routing::SignalNeeds;
use tokenrouter_core::step::Batch;
use tokenrouter_core::step::{ModelRunner, StepOutput};
use tokenrouter_core::{Request, RequestId, SamplingParams};
use tokenrouter_engine::config::{ModelConfig, WeightDtype};
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_engine::runner::{NativeRunner, RunnerOptions};
use tokenrouter_kernels::Pool;
use tokenrouter_testing::tiny;

#[test]
fn a_decode_step_allocates_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = tiny::config("llama");
    tiny::write(dir.path(), &config, &tiny::tensors(&config, 3));
    let settings = ModelConfig { path: Some(dir.path().to_owned()), ..ModelConfig::default() };
    let files = ModelFiles::open(&settings).expect("a valid model");
    let needs = SignalNeeds { softmax: true, top_logits: 20, hidden: true, embedding: true, extra_row: None };
    let options = RunnerOptions { needs, kv: (24, 16), ..RunnerOptions::default() };
    let pool = Pool::new(1, None).expect("a thread");
    let weights = (&files.weights, &files.patches);
    let mut runner = NativeRunner::load(&files.arch, weights, WeightDtype::F32, &options, pool).expect("loads");
    let sampling =
        SamplingParams { temperature: 0.8, top_p: 0.9, repetition_penalty: 1.1, ..SamplingParams::default() };
    let request = Arc::new(Request::new(vec![1], sampling, 0));
    let log: Vec<u32> = (0..64u32).map(|i| i * 7 % tiny::VOCAB as u32).collect();
    let blocks: Vec<Vec<u32>> = (0..4u32).map(|row| (row * 4..row * 4 + 4).collect()).collect();
    let (mut batch, mut output) = (Batch::default(), StepOutput::default());
    let mut step = |position: usize| {
        batch.clear();
        for blocks in &blocks {
            batch.push(RequestId(0), &request, (&log[..=position], position..position + 1), blocks);
        }
        runner.forward(&batch, &mut output).expect("computes");
    };
    (0..40).for_each(&mut step);
    let counted = allocation_counter::measure(|| (40..60).for_each(&mut step));
    assert_eq!(counted.count_total, 0, "allocations in 20 steps");
}
