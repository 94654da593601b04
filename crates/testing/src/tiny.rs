//! Small models with random weights, written as ordinary model folders.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde_json::{Value, json};
use tokenrouter_core::keyed::{Purpose, draw_unit};

/// Size of the toy vocabulary: tokens `t0`, `t1` and so on.
pub const VOCAB: usize = 96;

/// `config.json` of a small model of a family.
pub fn config(family: &str) -> Value {
    let mut config = json!({
        "model_type": family, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 3, "intermediate_size": 96, "vocab_size": VOCAB, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "eos_token_id": 2, "tie_word_embeddings": family == "qwen3",
        "hidden_act": "silu", "sliding_window": 4096, "max_window_layers": 3, "use_sliding_window": false,
        "attention_bias": false,
    });
    if family == "qwen3" {
        // Not `hidden_size / heads`, as in the real small Qwen3 models.
        config["head_dim"] = json!(32);
    }
    config
}

/// The tensors of [`config`], uniform with a spread that keeps logits of order 1. Norms are around 1.
pub fn tensors(config: &Value, seed: u64) -> HashMap<String, Tensor> {
    let size = |key: &str| config[key].as_u64().expect("a size") as usize;
    let (d, ffn, vocab) = (size("hidden_size"), size("intermediate_size"), size("vocab_size"));
    let dim = config["head_dim"].as_u64().map_or(d / size("num_attention_heads"), |dim| dim as usize);
    let (q, kv) = (dim * size("num_attention_heads"), dim * size("num_key_value_heads"));
    let family = config["model_type"].as_str().expect("a family");
    let mut shapes: Vec<(String, Vec<usize>)> =
        vec![("model.embed_tokens.weight".into(), vec![vocab, d]), ("model.norm.weight".into(), vec![d])];
    if config["tie_word_embeddings"] == json!(false) {
        shapes.push(("lm_head.weight".into(), vec![vocab, d]));
    }
    for layer in 0..size("num_hidden_layers") {
        let mut add =
            |name: &str, shape: &[usize]| shapes.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        for (name, shape) in [
            ("input_layernorm.weight", vec![d]),
            ("self_attn.q_proj.weight", vec![q, d]),
            ("self_attn.k_proj.weight", vec![kv, d]),
            ("self_attn.v_proj.weight", vec![kv, d]),
            ("self_attn.o_proj.weight", vec![d, q]),
            ("post_attention_layernorm.weight", vec![d]),
            ("mlp.gate_proj.weight", vec![ffn, d]),
            ("mlp.up_proj.weight", vec![ffn, d]),
            ("mlp.down_proj.weight", vec![d, ffn]),
        ] {
            add(name, &shape);
        }
        if family == "qwen2" {
            add("self_attn.q_proj.bias", &[q]);
            add("self_attn.k_proj.bias", &[kv]);
            add("self_attn.v_proj.bias", &[kv]);
        }
        if family == "qwen3" {
            add("self_attn.q_norm.weight", &[dim]);
            add("self_attn.k_norm.weight", &[dim]);
        }
    }
    let random = |index: usize, (name, shape): (String, Vec<usize>)| {
        let count: usize = shape.iter().product();
        let (centre, spread) = match shape.as_slice() {
            [_] if name.ends_with("bias") => (0.0, 0.2),
            [_] => (1.0, 0.2),
            [_, fan_in] => (0.0, 2.0 / (*fan_in as f64).sqrt()),
            _ => (0.0, 1.0),
        };
        let values = (0..count as u64)
            .map(|i| (centre + spread * (2.0 * draw_unit(seed, index as u64, i, Purpose::Sample) - 1.0)) as f32);
        let tensor = Tensor::from_iter(values, &Device::Cpu).and_then(|t| t.reshape(shape)).expect("a valid shape");
        (name, tensor)
    };
    shapes.into_iter().enumerate().map(|(index, shape)| random(index, shape)).collect()
}

/// Writes a model folder with a toy tokenizer.
pub fn write(dir: &Path, config: &Value, tensors: &HashMap<String, Tensor>) {
    std::fs::write(dir.join("config.json"), config.to_string()).expect("writable");
    candle_core::safetensors::save(tensors, dir.join("model.safetensors")).expect("writable");
    let vocab: serde_json::Map<String, Value> = (0..VOCAB).map(|id| (format!("t{id}"), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"},
    });
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).expect("writable");
}
