//! Our ragged decoders against candle-transformers' own models, for all three families, and against themselves under
//! batching and chunking.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use serde_json::{Value, json};
use tokenrouter_engine::config::{ModelConfig, WeightDtype};
use tokenrouter_engine::model::{Decoder, ModelFiles};
use tokenrouter_engine::runner::{NativeRunner, RunnerOptions};
use tokenrouter_engine::scheduler::Batch;
use tokenrouter_engine::{Request, RequestId, SamplingParams};
use tokenrouter_kernels::Pool;

use crate::tiny;

const BLOCKS: usize = 24;
const BLOCK: usize = 16;
const TOKENS: usize = 40;

fn tokens(seed: usize) -> Vec<u32> {
    (0..TOKENS).map(|i| ((i * i * 7 + seed * 13 + i) % tiny::VOCAB) as u32).collect()
}

fn request() -> Arc<Request> {
    Arc::new(Request::new(vec![0], SamplingParams::default(), 0))
}

/// The tensors as candle's own models take them.
fn var_builder(tensors: &std::collections::HashMap<String, Tensor>) -> candle_nn::VarBuilder<'static> {
    candle_nn::VarBuilder::from_tensors(tensors.clone(), candle_core::DType::F32, &Device::Cpu)
}

/// Logits after each position, from candle's own model of the family.
fn oracle(family: &str, config: &Value, tensors: &std::collections::HashMap<String, Tensor>) -> Vec<Vec<f32>> {
    use candle_transformers::models::{llama, qwen2, qwen3};
    let vb = var_builder(tensors);
    let input = |i: usize| Tensor::from_vec(vec![tokens(0)[i]], (1, 1), &Device::Cpu).expect("a token");
    let flat = |logits: Tensor| logits.flatten_all().and_then(|t| t.to_vec1::<f32>()).expect("logits");
    match family {
        "llama" => {
            let config: llama::LlamaConfig = serde_json::from_value(config.clone()).expect("llama config");
            let config = config.into_config(false);
            let model = llama::Llama::load(vb, &config).expect("llama");
            let mut cache =
                llama::Cache::new(true, candle_core::DType::F32, &config, &Device::Cpu).expect("llama cache");
            (0..TOKENS).map(|i| flat(model.forward(&input(i), i, &mut cache).expect("step"))).collect()
        }
        "qwen2" => {
            let config: qwen2::Config = serde_json::from_value(config.clone()).expect("qwen2 config");
            let mut model = qwen2::ModelForCausalLM::new(&config, vb).expect("qwen2");
            (0..TOKENS).map(|i| flat(model.forward(&input(i), i).expect("step"))).collect()
        }
        _ => {
            let config: qwen3::Config = serde_json::from_value(config.clone()).expect("qwen3 config");
            let mut model = qwen3::ModelForCausalLM::new(&config, vb).expect("qwen3");
            (0..TOKENS).map(|i| flat(model.forward(&input(i), i).expect("step"))).collect()
        }
    }
}

/// One of our two implementations.
enum Model {
    Candle(Decoder),
    Native(Box<NativeRunner>),
}

impl Model {
    /// Logits of the rows that sample.
    fn step(&mut self, batch: &Batch) -> Vec<Vec<f32>> {
        match self {
            Self::Candle(decoder) if batch.rows().iter().any(|row| row.sample) => {
                decoder.forward(batch).and_then(|(_, t)| t.to_vec2()).expect("logits")
            }
            Self::Candle(decoder) => {
                decoder.prefill(batch).expect("prefill");
                Vec::new()
            }
            Self::Native(runner) => {
                runner.logits(batch).expect("logits").chunks(tiny::VOCAB).map(<[f32]>::to_vec).collect()
            }
        }
    }
}

/// The tensors, and the models that both implementations make of them, the native one on one thread and on two.
fn load(config: &Value, seed: u64) -> (Vec<Model>, std::collections::HashMap<String, Tensor>) {
    let dir = tempfile::tempdir().expect("a folder");
    let tensors = tiny::tensors(config, seed);
    tiny::write(dir.path(), config, &tensors);
    let settings = ModelConfig { path: Some(dir.path().to_owned()), ..ModelConfig::default() };
    let files = ModelFiles::open(&settings).expect("a valid model");
    let size = (BLOCKS, BLOCK);
    let decoder = Decoder::load(&files.arch, (&files.weights, &files.patches), WeightDtype::F32, &Device::Cpu, size)
        .expect("loads");
    let native = |threads| {
        let pool = Pool::new(threads, None).expect("threads");
        let options = RunnerOptions { kv: size, ..RunnerOptions::default() };
        let runner =
            NativeRunner::load(&files.arch, (&files.weights, &files.patches), WeightDtype::F32, &options, pool);
        Model::Native(Box::new(runner.expect("loads")))
    };
    (vec![Model::Candle(decoder), native(1), native(2)], tensors)
}

#[test]
fn logits_equal_the_oracle_for_all_families_and_rope_scaling() {
    for family in ["llama", "qwen2", "qwen3", "llama3-scaling"] {
        let mut config =
            tiny::config(family.split('3').next().filter(|_| family == "llama3-scaling").unwrap_or(family));
        if family == "llama3-scaling" {
            config["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
        }
        let (models, tensors) = load(&config, 5);
        let want = oracle(config["model_type"].as_str().expect("family"), &config, &tensors);
        let blocks: Vec<u32> = [7, 2, 11].into();
        for mut model in models {
            let mut worst = 0f32;
            for (i, want) in want.iter().enumerate() {
                let mut batch = Batch::default();
                batch.push(RequestId(0), &request(), (&tokens(0)[..=i], i..i + 1), &blocks);
                let got = &model.step(&batch)[0];
                let argmax = |v: &[f32]| (0..v.len()).max_by(|a, b| v[*a].total_cmp(&v[*b]));
                assert_eq!(argmax(got), argmax(want), "{family}: greedy token after position {i}");
                worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
            }
            assert!(worst < 2e-5, "{family}: largest difference {worst}");
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch_nor_on_chunks() {
    for family in ["llama", "qwen2", "qwen3"] {
        let mut natives = Vec::new();
        for mut model in load(&tiny::config(family), 9).0 {
            let alone = alone(&mut model);
            assert_eq!(alone, together(&mut model), "{family}");
            if matches!(model, Model::Native(_)) {
                natives.push(alone);
            }
        }
        assert_eq!(natives[0], natives[1], "{family}: one thread and two");
    }
}

/// Last logits of three sequences, one token of one sequence at a time.
fn alone(model: &mut Model) -> Vec<Vec<f32>> {
    let tables: [Vec<u32>; 3] = [vec![0, 5, 9], vec![1, 6, 10], vec![2, 7, 11]];
    let sequence = |(row, table): (usize, &Vec<u32>)| {
        let mut last = Vec::new();
        for i in 0..TOKENS {
            let mut batch = Batch::default();
            batch.push(RequestId(0), &request(), (&tokens(row), i..i + 1), table);
            last = model.step(&batch);
        }
        last.remove(0)
    };
    tables.iter().enumerate().map(sequence).collect()
}

/// The same, all three in one batch, in chunks of different lengths and in other blocks.
fn together(model: &mut Model) -> Vec<Vec<f32>> {
    let tables: [Vec<u32>; 3] = [vec![12, 15, 18], vec![13, 16, 19], vec![14, 17, 20]];
    let mut done = [0usize; 3];
    let mut last = vec![Vec::new(); 3];
    for step in 0.. {
        let mut batch = Batch::default();
        let mut finished = Vec::new();
        for row in 0..3 {
            let take = (1 + (step * 5 + row * 3) % 9).min(TOKENS - done[row]);
            if take == 0 {
                continue;
            }
            let end = done[row] + take;
            let tokens = tokens(row);
            batch.push(RequestId(0), &request(), (&tokens, done[row]..end), &tables[row]);
            done[row] = end;
            if end == TOKENS {
                finished.push(row);
            }
        }
        if batch.rows().is_empty() {
            break;
        }
        for (row, logits) in finished.into_iter().zip(model.step(&batch)) {
            last[row] = logits;
        }
    }
    last
}

#[test]
fn depth_pruning_keeps_the_named_layers() {
    let config = tiny::config("llama");
    let (_, tensors) = load(&config, 3);
    let dir = tempfile::tempdir().expect("a folder");
    tiny::write(dir.path(), &config, &tensors);
    let pruned = ModelConfig { path: Some(dir.path().to_owned()), layers: Some(vec![0, 2]), ..ModelConfig::default() };
    let files = ModelFiles::open(&pruned).expect("valid");
    assert_eq!(files.arch.layers, [0, 2]);
    let bad = ModelConfig { layers: Some(vec![0, 3]), ..pruned };
    let message = ModelFiles::open(&bad).expect_err("no layer 3").to_string();
    assert!(message.contains("layer 3") && message.contains("0 to 2"), "{message}");
}
