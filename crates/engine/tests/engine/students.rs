//! Students: layers from a file of their own, the embedding of another model, a head for a part of the vocabulary.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use candle_core::quantized::gguf_file::Value;
use tokenrouter_core::step::Batch;
use tokenrouter_core::{Request, RequestId, SamplingParams};
use tokenrouter_engine::config::{Config, ModelConfig, WeightDtype};
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_engine::runner::{NativeRunner, RunnerOptions};
use tokenrouter_kernels::Pool;
use tokenrouter_testing::tiny::VOCAB;

use crate::gguf::{Metadata, Tensors, metadata, tensors, write};

/// The tokens that the student can write.
const TOKENS: [u32; 7] = [0, 2, 3, 6, 40, 41, 95];

/// Layers 2 and 1 of the model, in this order.
fn student() -> (Metadata, Tensors) {
    let mut values = metadata();
    values.retain(|key, _| !key.starts_with("tokenizer."));
    values.insert("llama.block_count".into(), Value::U32(2));
    let ids = TOKENS.iter().map(|id| Value::U32(*id)).collect();
    values.insert("tokenrouter.output.token_ids".into(), Value::Array(ids));
    let mut layers = Tensors::new();
    for (name, tensor) in tensors() {
        for (old, new) in [("blk.2.", "blk.0."), ("blk.1.", "blk.1.")] {
            if let Some(rest) = name.strip_prefix(old) {
                layers.insert(format!("{new}{rest}"), tensor.clone());
            }
        }
    }
    layers.insert("output_norm.weight".into(), tensors()["output_norm.weight"].clone());
    (values, layers)
}

fn open(dir: &Path, student: Option<&(Metadata, Tensors)>) -> Result<ModelFiles, String> {
    let (base, layers) = (dir.join("base.gguf"), dir.join("student.gguf"));
    write(&base, &metadata(), &tensors());
    let mut config = ModelConfig { path: Some(base), ..ModelConfig::default() };
    if let Some((values, tensors)) = student {
        write(&layers, values, tensors);
        config.student = Some(layers);
    }
    ModelFiles::open(&config).map_err(|error| error.to_string())
}

/// Logits after a short text.
fn logits(files: &ModelFiles) -> Vec<f32> {
    let options = RunnerOptions { kv: (4, 16), ..RunnerOptions::default() };
    let weights = (&files.weights, &files.patches);
    let pool = Pool::new(1, None).expect("a thread");
    let mut runner = NativeRunner::load(&files.arch, weights, WeightDtype::Native, &options, pool).expect("loads");
    let request = Arc::new(Request::new(vec![0, 7, 50], SamplingParams::default(), 0));
    let mut batch = Batch::default();
    batch.push(RequestId(0), &request, (&request.prompt, 0..3), &[0]);
    runner.logits(&batch).expect("a step").to_vec()
}

#[test]
fn a_student_computes_what_a_whole_model_of_its_layers_does() {
    let dir = tempfile::tempdir().expect("a folder");
    // The oracle: one file with the layers in the student's order, and everything else of the base model.
    let (mut whole, (values, layers)) = (tensors(), student());
    whole.retain(|name, _| !name.starts_with("blk."));
    whole.extend(layers.clone());
    let mut settings = metadata();
    settings.insert("llama.block_count".into(), Value::U32(2));
    let path = dir.path().join("whole.gguf");
    write(&path, &settings, &whole);
    let oracle = ModelFiles::open(&ModelConfig { path: Some(path), ..ModelConfig::default() }).expect("a model");
    let want = logits(&oracle);
    // The same with the head's rows in the student's file.
    let mut with_head = layers.clone();
    let index = Tensor::new(&TOKENS, &candle_core::Device::Cpu).expect("ids");
    with_head.insert("output.weight".into(), whole["output.weight"].index_select(&index, 0).expect("rows"));
    for layers in [layers, with_head] {
        let files = open(dir.path(), Some(&(values.clone(), layers))).expect("a student");
        assert_eq!((files.arch.layers.len(), files.arch.head_rows(), files.arch.vocab), (2, TOKENS.len(), VOCAB));
        assert_eq!(files.eos, oracle.eos);
        for (token, (got, want)) in (0u32..).zip(logits(&files).iter().zip(&want)) {
            let want = if TOKENS.contains(&token) { *want } else { f32::NEG_INFINITY };
            assert_eq!(got.to_bits(), want.to_bits(), "token {token}");
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let with = |key: &str, value: Value| {
        let (mut values, layers) = student();
        values.insert(key.into(), value);
        values.insert("llama.attention.key_length".into(), Value::U32(16));
        open(dir.path(), Some(&(values, layers))).map(|files| files.warnings)
    };
    let ids = |ids: &[u32]| Value::Array(ids.iter().map(|id| Value::U32(*id)).collect());
    for (key, value, wanted) in [
        ("tokenrouter.output.token_ids", ids(&[3, 3]), "must ascend, but 3 is followed by 3"),
        ("tokenrouter.output.token_ids", ids(&[VOCAB as u32]), "allowed are ids below 96"),
        ("tokenrouter.output.token_ids", Value::U32(3), "is no list of token ids"),
        ("llama.vocab_size", Value::U32(7), "vocabulary size is 7, the model whose embedding it shares has 96"),
        ("llama.embedding_length", Value::U32(128), "embedding length is 128"),
    ] {
        let message = with(key, value).expect_err("does not fit");
        assert!(message.contains(wanted) && message.contains("student.gguf"), "{message}");
    }
    let warnings = with("tokenrouter.embedding.sha256", Value::String("00".into())).expect("loads");
    assert!(warnings.iter().any(|warning| warning.contains("trained with another embedding")), "{warnings:?}");
    let (values, mut layers) = student();
    layers.insert("token_embd.weight".into(), tensors()["token_embd.weight"].clone());
    let message = open(dir.path(), Some(&(values.clone(), layers.clone()))).expect_err("has an embedding");
    assert!(message.contains("goes under `path`"), "{message}");
    layers.remove("token_embd.weight");
    let lone = dir.path().join("lone.gguf");
    write(&lone, &values, &layers);
    let message = ModelFiles::open(&ModelConfig { path: Some(lone), ..ModelConfig::default() });
    let message = message.expect_err("no embedding").to_string();
    assert!(message.contains("which goes under `student`"), "{message}");
    let text = "models:\n  a: {source: demo, student: x.gguf, layers: [0]}\n  b: {source: demo}\n\
                routing: {method: entropy, entropy_threshold: 1.0}\nsystem: {entry_model: a}\n";
    let message = Config::from_yaml(text, "test.yaml").expect_err("both").to_string();
    assert!(message.contains("`layers` cannot be beside it"), "{message}");
}
