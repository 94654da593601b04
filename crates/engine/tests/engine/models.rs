//! Our ragged decoders against candle-transformers' own models, for all three families, and against themselves under
//! batching and chunking.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use serde_json::{Value, json};
use tokenrouter_core::step::Batch;
use tokenrouter_core::step::{ModelRunner, StepOutput};
use tokenrouter_core::{Request, RequestId, SamplingParams};
use tokenrouter_engine::config::{ModelConfig, WeightDtype};
use tokenrouter_engine::model::ModelFiles;
#[cfg(feature = "cuda-emulation")]
use tokenrouter_engine::runner::{CudaRunner, CudaShapes};
use tokenrouter_engine::runner::{NativeRunner, RunnerOptions};
use tokenrouter_kernels::Pool;

use tokenrouter_testing::candle_oracle::CandleDecoder;
use tokenrouter_testing::tiny;

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

/// One of our implementations.
enum Model {
    Candle(Box<CandleDecoder>),
    Native(Box<NativeRunner>),
    /// The CUDA kernels, run on the host.
    #[cfg(feature = "cuda-emulation")]
    Cuda(Box<CudaRunner>),
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
            #[cfg(feature = "cuda-emulation")]
            Self::Cuda(runner) => {
                let mut output = StepOutput::default();
                runner.forward(batch, &mut output).expect("a step");
                let rows = 0..batch.rows().iter().filter(|row| row.sample).count();
                rows.map(|row| runner.logits(row).expect("logits").to_vec()).collect()
            }
        }
    }
}

/// The tensors, and the models that both implementations make of them, the native one on one thread and on two.
fn load(config: &Value, seed: u64) -> (Vec<Model>, std::collections::HashMap<String, Tensor>) {
    let tensors = tiny::tensors(config, seed);
    (load_tensors(config, &tensors), tensors)
}

fn load_tensors(config: &Value, tensors: &std::collections::HashMap<String, Tensor>) -> Vec<Model> {
    let dir = tempfile::tempdir().expect("a folder");
    tiny::write(dir.path(), config, tensors);
    let settings = ModelConfig { path: Some(dir.path().to_owned()), ..ModelConfig::default() };
    let files = ModelFiles::open(&settings).expect("a valid model");
    let size = (BLOCKS, BLOCK);
    let decoder = CandleDecoder::load(&files, WeightDtype::F32, size).expect("loads");
    let native = |threads| {
        let pool = Pool::new(threads, None).expect("threads");
        let options = RunnerOptions { kv: size, ..RunnerOptions::default() };
        let runner =
            NativeRunner::load(&files.arch, (&files.weights, &files.patches), WeightDtype::F32, &options, pool);
        Model::Native(Box::new(runner.expect("loads")))
    };
    #[allow(unused_mut, reason = "features")]
    let mut models = vec![Model::Candle(Box::new(decoder)), native(1), native(2)];
    #[cfg(feature = "cuda-emulation")]
    models.extend([cuda(&files, 1), cuda(&files, 2)]);
    models
}

/// On one emulated device, with graphs, or on as many as there are ranks, which have none.
#[cfg(feature = "cuda-emulation")]
fn cuda(files: &ModelFiles, ranks: usize) -> Model {
    let options = RunnerOptions { kv: (BLOCKS, BLOCK), ..RunnerOptions::default() };
    let devices: Vec<_> = (0..ranks).map(|_| tokenrouter_kernels::cuda::Device::emulated()).collect();
    let shapes = CudaShapes { tokens: 64, rows: 8, graphs: vec![(1, 1), (4, 2), (16, 3)] };
    let weights = (&files.weights, &files.patches);
    let runner = CudaRunner::load(&files.arch, weights, WeightDtype::F32, &options, (&devices, &shapes));
    Model::Cuda(Box::new(runner.expect("loads")))
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

/// A Llama model with biases on queries, keys and values is a Qwen2 model by another name.
#[test]
fn biases_of_a_llama_are_read() {
    let mut config = tiny::config("llama");
    config["attention_bias"] = json!(true);
    let tensors = tiny::tensors(&tiny::config("qwen2"), 5);
    let want = oracle("qwen2", &tiny::config("qwen2"), &tensors);
    for mut model in load_tensors(&config, &tensors) {
        for (i, want) in want.iter().enumerate() {
            let mut batch = Batch::default();
            batch.push(RequestId(0), &request(), (&tokens(0)[..=i], i..i + 1), &[7, 2, 11]);
            let got = &model.step(&batch)[0];
            let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 2e-5, "position {i}: largest difference {worst}");
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

/// Candidates, signals and scores of the emulated CUDA runner equal those of the CPU's, for a head that runs on the device
/// and for one whose inputs come to the host.
#[cfg(feature = "cuda-emulation")]
#[test]
fn cuda_gives_the_signals_and_scores_of_the_cpu() {
    use tokenrouter_core::routing::SignalNeeds;
    use tokenrouter_engine::heads::Head;

    let config = tiny::config("qwen3");
    let tensors = tiny::tensors(&config, 21);
    let dir = tempfile::tempdir().expect("a folder");
    tiny::write(dir.path(), &config, &tensors);
    let settings = ModelConfig { path: Some(dir.path().to_owned()), ..ModelConfig::default() };
    let files = ModelFiles::open(&settings).expect("a valid model");
    let needs = SignalNeeds { softmax: true, top_logits: 3, hidden: true, embedding: true, extra_row: Some(7) };
    let head = Head::new(&crate::heads::citer_for(64)).expect("a head").for_routing();
    let options = RunnerOptions { needs, vocab: 90, kv: (BLOCKS, BLOCK), ..RunnerOptions::default() };
    let weights = (&files.weights, &files.patches);
    let pool = Pool::new(1, None).expect("a thread");
    let mut cpu = NativeRunner::load(&files.arch, weights, WeightDtype::F32, &options, pool).expect("loads");
    let cuda = |head: Option<Arc<dyn tokenrouter_core::routing::Head>>| {
        let options = RunnerOptions { head, ..options.clone() };
        let devices = [tokenrouter_kernels::cuda::Device::emulated()];
        let shapes = CudaShapes { tokens: 64, rows: 4, graphs: vec![(2, 2)] };
        CudaRunner::load(&files.arch, weights, WeightDtype::F32, &options, (&devices, &shapes)).expect("loads")
    };
    let (mut on_host, mut on_device) = (cuda(None), cuda(Some(Arc::clone(&head))));
    let greedy = request();
    let params = SamplingParams { temperature: 1.5, ..SamplingParams::default() };
    let sampled = Arc::new(Request::new(vec![0], params, 3));
    let (mut want, mut got, mut scored) = (StepOutput::default(), StepOutput::default(), StepOutput::default());
    let mut chosen_otherwise = 0;
    for position in 0..TOKENS {
        let mut batch = Batch::default();
        for (row, request) in [&greedy, &sampled].into_iter().enumerate() {
            let tokens = tokens(row);
            let table: Vec<u32> = (0..3).map(|block| 3 * row as u32 + block).collect();
            batch.push(RequestId(row as u64), request, (&tokens[..=position], position..position + 1), &table);
        }
        cpu.forward(&batch, &mut want).expect("a step");
        on_host.forward(&batch, &mut got).expect("a step");
        on_device.forward(&batch, &mut scored).expect("a step");
        assert_eq!((&got.tokens, &scored.tokens), (&want.tokens, &want.tokens), "position {position}");
        assert_eq!((got.graph, scored.graph), (Some(true), Some(true)));
        let close = |got: &[f32], want: &[f32], what: &str| {
            assert_eq!(got.len(), want.len(), "{what} at {position}");
            let far = got.iter().zip(want).any(|(got, want)| (got - want).abs() > 1e-4 * want.abs().max(1.0));
            assert!(!far, "{what} at {position}: {got:?} instead of {want:?}");
        };
        close(&got.hidden, &want.hidden, "hidden states");
        close(&got.embedding, &want.embedding, "embeddings");
        close(&got.extra, &want.extra, "logits of the extra row");
        let softmax = |output: &StepOutput| -> Vec<f32> {
            output.softmax.iter().flat_map(|row| [row.entropy, row.log_sum_exp]).collect()
        };
        close(&softmax(&got), &softmax(&want), "signals");
        assert_eq!(ids(&got), ids(&want));
        let mut scores = Vec::new();
        let Head::Citer(citer) = Head::new(&crate::heads::citer_for(64)).expect("a head") else {
            panic!("made as one of CITER")
        };
        citer.score(&want.hidden, &mut scores).expect("scores");
        close(&scored.scores, &scores, "scores");
        assert!(scored.hidden.is_empty() && scored.top.is_empty() && got.scores.is_empty());
        chosen_otherwise += usize::from(want.tokens[1] != on_device.logits(1).map(argmax).expect("logits"));
    }
    assert!(chosen_otherwise > 0, "sampling never differed from the largest logit: seed 3");
}

#[cfg(feature = "cuda-emulation")]
fn ids(output: &StepOutput) -> Vec<u32> {
    output.top.iter().map(|(_, id)| *id).collect()
}

#[cfg(feature = "cuda-emulation")]
fn argmax(logits: &[f32]) -> u32 {
    tokenrouter_kernels::argmax(logits)
}
