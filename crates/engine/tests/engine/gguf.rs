//! GGUF models, written here: parts, metadata, tokenizers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use tokenrouter_engine::config::{ModelConfig, WeightDtype};
use tokenrouter_engine::model::{ModelFiles, RopeScaling, Slot};
use tokenrouter_engine::runner::{NativeRunner, RunnerOptions};
use tokenrouter_kernels::Pool;
use tokenrouter_testing::tiny;

pub(crate) type Metadata = BTreeMap<String, Value>;
pub(crate) type Tensors = BTreeMap<String, Tensor>;

fn text(value: &str) -> Value {
    Value::String(value.into())
}

fn texts<'a>(values: impl IntoIterator<Item = &'a str>) -> Value {
    Value::Array(values.into_iter().map(text).collect())
}

/// Tokens of a byte-level vocabulary that has `abc`, to which no merges lead.
pub(crate) fn metadata() -> Metadata {
    let mut tokens: Vec<String> =
        ["a", "b", "c", "ab", "abc", "<|begin|>", "<|end|>", "<|turn|>", "<|tool|>"].map(Into::into).into();
    tokens.extend((tokens.len()..tiny::VOCAB).map(|id| format!("x{id}")));
    let mut values: Metadata = [
        ("llama.context_length", 256),
        ("llama.embedding_length", 64),
        ("llama.block_count", 3),
        ("llama.feed_forward_length", 96),
        ("llama.attention.head_count", 4),
        ("llama.attention.head_count_kv", 2),
        ("llama.rope.dimension_count", 16),
        ("tokenizer.ggml.bos_token_id", 5),
        ("tokenizer.ggml.eos_token_id", 6),
    ]
    .map(|(key, value)| (key.to_owned(), Value::U32(value)))
    .into();
    values.insert("general.architecture".into(), text("llama"));
    values.insert("general.name".into(), text("a test"));
    values.insert("llama.attention.layer_norm_rms_epsilon".into(), Value::F32(1e-5));
    values.insert("tokenizer.ggml.model".into(), text("gpt2"));
    values.insert("tokenizer.ggml.pre".into(), text("qwen2"));
    values.insert("tokenizer.ggml.tokens".into(), texts(tokens.iter().map(String::as_str)));
    values.insert("tokenizer.ggml.merges".into(), texts(["a b"]));
    values
}

pub(crate) fn tensors() -> Tensors {
    tensors_of(&tiny::config("llama"))
}

/// The random tensors of a model, by their names in GGUF files.
pub(crate) fn tensors_of(config: &serde_json::Value) -> Tensors {
    let names = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let rename = |name: String| names.iter().fold(name, |name, (from, to)| name.replace(from, to));
    tiny::tensors(config, 4).into_iter().map(|(name, tensor)| (rename(name), tensor)).collect()
}

pub(crate) fn write(path: &Path, metadata: &Metadata, tensors: &Tensors) {
    let mut file = std::fs::File::create(path).expect("writable");
    let values: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let stored: Vec<(&str, QTensor)> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), QTensor::quantize(tensor, GgmlDType::F32).expect("stored")))
        .collect();
    let stored: Vec<(&str, &QTensor)> = stored.iter().map(|(name, tensor)| (*name, tensor)).collect();
    gguf_file::write(&mut file, &values, &stored).expect("writable");
}

fn open(path: &Path) -> Result<ModelFiles, String> {
    let config = ModelConfig { path: Some(path.to_owned()), ..ModelConfig::default() };
    ModelFiles::open(&config).map_err(|error| error.to_string())
}

/// A model with some metadata changed, and `None` left out.
fn with(changes: &[(&str, Option<Value>)], tensors: &Tensors) -> Result<ModelFiles, String> {
    let mut values = metadata();
    for (key, value) in changes {
        match value {
            Some(value) => values.insert((*key).into(), value.clone()),
            None => values.remove(*key),
        };
    }
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.gguf");
    write(&path, &values, tensors);
    open(&path)
}

fn load(files: &ModelFiles) -> Result<(), String> {
    let options = RunnerOptions { kv: (4, 16), ..RunnerOptions::default() };
    let weights = (&files.weights, &files.patches);
    let pool = Pool::new(1, None).expect("a thread");
    let loaded = NativeRunner::load(&files.arch, weights, WeightDtype::Native, &options, pool);
    loaded.map(drop).map_err(|error| error.to_string())
}

/// A model in three files: metadata, embedding and head, layers.
fn split(dir: &Path) -> [PathBuf; 3] {
    let all = tensors();
    let paths = [1, 2, 3].map(|part| dir.join(format!("model-0000{part}-of-00003.gguf")));
    for (index, path) in paths.iter().enumerate() {
        let mut values = if index == 0 { metadata() } else { Metadata::new() };
        values.insert("split.no".into(), Value::U16(index as u16));
        values.insert("split.count".into(), Value::U16(3));
        values.insert("split.tensors.count".into(), Value::I32(all.len() as i32));
        let part = all.iter().filter(|(name, _)| index == if name.starts_with("blk.") { 2 } else { 1 });
        write(path, &values, &part.map(|(name, tensor)| (name.clone(), tensor.clone())).collect());
    }
    paths
}

#[test]
fn all_parts_of_a_model_are_read_whichever_is_named() {
    let whole = with(&[], &tensors()).expect("whole");
    let dir = tempfile::tempdir().expect("a folder");
    for path in split(dir.path()) {
        let files = open(&path).expect("all parts");
        assert_eq!((&files.arch, &files.eos), (&whole.arch, &whole.eos));
        for slot in [Slot::Head, Slot::Layer(2, "ffn_down")] {
            let values = |files: &ModelFiles| files.weights.find(slot).expect("readable").expect("there").to_f32();
            assert_eq!(values(&files).expect("floats"), values(&whole).expect("floats"));
        }
        assert_eq!(load(&files), Ok(()));
    }
    let config = ModelConfig { path: Some(dir.path().join("model-00002-of-00003.gguf")), ..ModelConfig::default() };
    let mut out = std::io::Cursor::new(Vec::new());
    tokenrouter_engine::model::export_gguf(&config, &mut out).expect("exports");
    let one = dir.path().join("one.gguf");
    std::fs::write(&one, out.into_inner()).expect("writable");
    assert_eq!(open(&one).expect("one file").arch, whole.arch);
}

#[test]
fn parts_that_are_missing_or_misnamed_are_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let [first, second, third] = split(dir.path());
    let renamed = dir.path().join("other.gguf");
    std::fs::copy(&first, &renamed).expect("copied");
    let message = open(&renamed).expect_err("no number");
    assert!(message.contains("files are called `NAME-00001-of-00003.gguf`"), "{message}");
    std::fs::copy(&second, &third).expect("copied");
    let message = open(&first).expect_err("the second twice");
    assert!(message.contains("`split.no` is 1, by its name it is 2"), "{message}");
    std::fs::remove_file(&third).expect("there");
    let message = open(&first).expect_err("incomplete");
    assert!(message.contains("part 3 of 3 is missing: no file `model-00003-of-00003.gguf`"), "{message}");
}

#[test]
fn metadata_that_are_not_computed_are_refused_by_name() {
    for (key, value, wanted) in [
        ("llama.expert_count", Value::U32(8), "key `llama.expert_count` is `8`: a mixture of experts"),
        ("llama.logit_scale", Value::F32(0.5), "key `llama.logit_scale` is `0.5`"),
        ("llama.attention.causal", Value::Bool(false), "key `llama.attention.causal` is `false`"),
        ("llama.rope.scaling.type", text("longrope"), "`llama.rope.scaling.type` is `longrope`, supported are"),
        (
            "llama.rope.dimension_count",
            Value::U32(8),
            "`llama.rope.dimension_count` is 8, allowed is the head's length 16",
        ),
        ("llama.attention.head_count_kv", text("2"), "`llama.attention.head_count_kv` has an unexpected type"),
        ("tokenizer.ggml.add_eos_token", Value::Bool(true), "key `tokenizer.ggml.add_eos_token` is `true`"),
        ("tokenizer.ggml.add_space_prefix", Value::Bool(true), "key `tokenizer.ggml.add_space_prefix` is `true`"),
        ("tokenizer.ggml.pre", text("kimi-k2"), "`kimi-k2` is not supported, supported are `smollm`, `gpt-2`"),
        ("general.architecture", text("gemma3"), "architecture `gemma3` is not supported, supported are"),
    ] {
        let message = with(&[(key, Some(value))], &tensors()).expect_err("refused");
        assert!(message.contains(wanted), "{message}");
    }
    let warnings = with(&[("llama.new_scale", Some(Value::F32(2.0)))], &tensors()).expect("opens").warnings;
    assert_eq!(warnings, ["`llama.new_scale` of GGUF metadata unknown and not used"]);
    let mut more = tensors();
    more.insert(
        "rope_factors_long.weight".into(),
        Tensor::ones(8, candle_core::DType::F32, &Device::Cpu).expect("a tensor"),
    );
    let message = with(&[], &more).expect_err("another kind of scaling");
    assert!(message.contains("tensor `rope_factors_long.weight` is not part of the model"), "{message}");
}

#[test]
fn rope_scaling_is_read_in_all_its_forms() {
    let factor = ("llama.rope.scaling.factor", Some(Value::F32(4.0)));
    let scaling = |changes: &[(&str, Option<Value>)]| with(changes, &tensors()).map(|files| files.arch.rope_scaling);
    assert_eq!(scaling(&[]), Ok(RopeScaling::None));
    assert_eq!(scaling(std::slice::from_ref(&factor)), Ok(RopeScaling::Linear(4.0)));
    assert_eq!(scaling(&[("llama.rope.scale_linear", Some(Value::F32(2.0)))]), Ok(RopeScaling::Linear(2.0)));
    let yarn = [
        factor,
        ("llama.rope.scaling.type", Some(text("yarn"))),
        ("llama.rope.scaling.original_context_length", Some(Value::U32(128))),
    ];
    let files = with(&yarn, &tensors()).expect("yarn");
    assert_eq!(files.arch.context, 512);
    // As a folder says it.
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = tiny::config("llama");
    config["rope_scaling"] =
        serde_json::json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128});
    tiny::write(dir.path(), &config, &tiny::tensors(&config, 4));
    assert_eq!(files.arch.rope_scaling, open(dir.path()).expect("a folder").arch.rope_scaling);

    let mut divided = tensors();
    let divisors = vec![1f32, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0];
    divided.insert("rope_freqs.weight".into(), Tensor::from_vec(divisors.clone(), 8, &Device::Cpu).expect("a tensor"));
    let files = with(&[], &divided).expect("divisors");
    let plain = with(&[], &tensors()).expect("plain").arch.inverse_frequencies();
    let want: Vec<f32> = plain.iter().zip(&divisors).map(|(f, d)| f / d).collect();
    assert_eq!(files.arch.inverse_frequencies(), want);
    assert!(with(&yarn, &divided).expect_err("both").contains("change the same frequencies"));
}

#[test]
fn llama_3_takes_tokens_without_merges_and_begins_with_a_token() {
    let encode = |changes: &[(&str, Option<Value>)]| {
        with(changes, &tensors()).map(|files| files.text.encode("abc").expect("tokens"))
    };
    assert_eq!(encode(&[]), Ok(vec![3, 2]));
    let llama = ("tokenizer.ggml.pre", Some(text("llama-bpe")));
    let flag = |value: bool| ("tokenizer.ggml.add_bos_token", Some(Value::Bool(value)));
    assert_eq!(encode(std::slice::from_ref(&llama)), Ok(vec![5, 4]));
    assert_eq!(encode(&[llama, flag(false)]), Ok(vec![4]));
    assert_eq!(encode(&[flag(true)]), Ok(vec![5, 3, 2]));
    let message = encode(&[flag(true), ("tokenizer.ggml.bos_token_id", None)]).expect_err("no id");
    assert!(message.contains("`tokenizer.ggml.bos_token_id` is missing"), "{message}");
    let message = encode(&[flag(true), ("tokenizer.ggml.bos_token_id", Some(Value::U32(96)))]).expect_err("no token");
    assert!(message.contains("is 96, allowed are 0 to 95"), "{message}");
}

#[test]
fn all_end_tokens_end_an_answer() {
    let eos = |changes: &[(&str, Option<Value>)]| with(changes, &tensors()).map(|files| files.eos);
    let eot = ("tokenizer.ggml.eot_token_id", Some(Value::U32(7)));
    let eom = ("tokenizer.ggml.eom_token_id", Some(Value::U32(8)));
    assert_eq!(eos(&[eot.clone(), eom]), Ok(vec![6, 7, 8]));
    assert_eq!(eos(&[eot, ("tokenizer.ggml.eos_token_id", None)]), Ok(vec![7]));
    assert!(
        eos(&[("tokenizer.ggml.eos_token_id", None)])
            .is_err_and(|message| message.contains("eos_token_id` is missing"))
    );
}

#[test]
fn a_block_whose_scale_is_not_finite_names_its_tensor() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.gguf");
    let stored: Vec<(String, QTensor)> = tensors()
        .iter()
        .map(|(name, tensor)| {
            let dtype = if name == "blk.1.ffn_up.weight" { GgmlDType::Q8_0 } else { GgmlDType::F32 };
            (name.clone(), QTensor::quantize(tensor, dtype).expect("stored"))
        })
        .collect();
    let values = metadata();
    let values: Vec<(&str, &Value)> = values.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let views: Vec<(&str, &QTensor)> = stored.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut file = std::fs::File::create(&path).expect("writable");
    gguf_file::write(&mut file, &values, &views).expect("writable");
    assert_eq!(load(&open(&path).expect("opens")), Ok(()));
    // The scale of block 3 becomes infinite.
    let mut bytes = std::fs::read(&path).expect("there");
    let content = gguf_file::Content::read(&mut std::io::Cursor::new(&bytes)).expect("a header");
    let at = (content.tensor_data_offset + content.tensor_infos["blk.1.ffn_up.weight"].offset) as usize + 3 * 34;
    bytes[at..at + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
    std::fs::write(&path, bytes).expect("writable");
    let message = load(&open(&path).expect("opens")).expect_err("infinite");
    assert!(message.contains("tensor `blk.1.ffn_up.weight` holds inf as scale of block 3"), "{message}");
}
