//! Model folders: what they say is computed, or refused by name, or named in a warning.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tokenrouter_engine::config::{ModelConfig, WeightDtype};
use tokenrouter_engine::model::{ModelFiles, Slot};
use tokenrouter_engine::runner::{NativeRunner, RunnerOptions};
use tokenrouter_kernels::Pool;
use tokenrouter_testing::tiny;

type Tensors = HashMap<String, Tensor>;

fn open(path: &Path) -> Result<ModelFiles, String> {
    let config = ModelConfig { path: Some(path.to_owned()), ..ModelConfig::default() };
    ModelFiles::open(&config).map_err(|error| error.to_string())
}

/// Loads the weights too.
fn load(files: &ModelFiles, dtype: WeightDtype) -> Result<(), String> {
    let options = RunnerOptions { kv: (4, 16), ..RunnerOptions::default() };
    let pool = Pool::new(1, None).expect("a thread");
    let weights = (&files.weights, &files.patches);
    NativeRunner::load(&files.arch, weights, dtype, &options, pool).map(drop).map_err(|error| error.to_string())
}

/// A folder with a model of a family, with changes of its `config.json`.
fn folder(family: &str, changes: Value) -> (tempfile::TempDir, Tensors) {
    let dir = tempfile::tempdir().expect("a folder");
    let tensors = tiny::tensors(&tiny::config(family), 3);
    let mut config = tiny::config(family);
    for (key, value) in changes.as_object().expect("an object") {
        config[key] = value.clone();
    }
    tiny::write(dir.path(), &config, &tensors);
    (dir, tensors)
}

fn write(dir: &tempfile::TempDir, name: &str, value: &Value) {
    std::fs::write(dir.path().join(name), value.to_string()).expect("writable");
}

fn save(dir: &tempfile::TempDir, name: &str, tensors: &Tensors) {
    candle_core::safetensors::save(tensors, dir.path().join(name)).expect("writable");
}

/// The values of a tensor's role.
fn values(files: &ModelFiles, slot: Slot) -> Vec<f32> {
    files.weights.find(slot).expect("readable").expect("there").to_f32().expect("floats")
}

fn only(tensors: &Tensors, names: &[&str]) -> Tensors {
    names.iter().map(|name| ((*name).to_owned(), tensors[*name].clone())).collect()
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().and_then(|tensor| tensor.to_vec1()).expect("floats")
}

#[test]
fn keys_that_are_not_computed_are_refused_by_name() {
    for (key, value) in [
        ("quantization_config", json!({"quant_method": "fp8", "weight_block_size": [128, 128]})),
        ("embedding_multiplier", json!(12.0)),
        ("residual_multiplier", json!(0.22)),
        ("attention_multiplier", json!(0.0156)),
        ("logits_scaling", json!(8)),
        ("final_logit_softcapping", json!(30.0)),
        ("attn_logit_softcapping", json!(50.0)),
        ("query_pre_attn_scalar", json!(256)),
        ("partial_rotary_factor", json!(0.5)),
        ("no_rope_layers", json!([1, 1, 0])),
        ("num_experts", json!(64)),
        ("num_local_experts", json!(8)),
        ("qk_norm", json!(true)),
        ("clip_qkv", json!(8.0)),
        ("auto_map", json!({"AutoModel": "modeling.Other"})),
    ] {
        let (dir, _) = folder("llama", json!({ key: value }));
        let message = open(dir.path()).expect_err("refused");
        let names = message.contains("config.json: key `") && message.contains(&format!("`{key}` is `"));
        assert!(names && message.contains("allowed is"), "{message}");
    }
    let neutral = json!({"quantization_config": null, "embedding_multiplier": 1, "logits_scaling": 1.0, "num_experts": 0,
        "final_logit_softcapping": null, "no_rope_layers": [1, 1, 1], "partial_rotary_factor": 1.0, "qk_norm": false});
    let (dir, _) = folder("llama", neutral);
    assert_eq!(open(dir.path()).expect("nothing is changed").warnings, Vec::<String>::new());
}

#[test]
fn unknown_keys_are_named_once_for_each_file() {
    let (dir, _) = folder("qwen3", json!({"new_scale": 2.0, "another": "x", "torch_dtype": "bfloat16"}));
    write(&dir, "generation_config.json", &json!({"eos_token_id": 2, "temperature": 0.6, "new_search": true}));
    write(&dir, "tokenizer_config.json", &json!({"tokenizer_class": "Qwen2Tokenizer", "new_text": 1}));
    let warnings = open(dir.path()).expect("opens").warnings;
    let want = [
        "`another`, `new_scale` of config.json unknown and not used",
        "`new_search` of generation_config.json unknown and not used",
        "`new_text` of tokenizer_config.json unknown and not used",
    ];
    assert_eq!(warnings, want);
}

#[test]
fn rope_parameters_are_what_rope_scaling_was() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64});
    let mut parameters = scaling.clone();
    parameters["rope_theta"] = json!(5e5);
    let (old, _) = folder("llama", json!({"rope_theta": 5e5, "rope_scaling": scaling}));
    let (new, _) = folder("llama", json!({"rope_theta": null, "rope_parameters": parameters}));
    let (old, new) = (open(old.path()).expect("old"), open(new.path()).expect("new"));
    assert_eq!(old.arch, new.arch);
    let (plain, _) = folder("llama", json!({"rope_theta": 5e5}));
    assert_ne!(open(plain.path()).expect("plain").arch.inverse_frequencies(), new.arch.inverse_frequencies());
}

#[test]
fn weights_of_8_bits_are_refused_by_their_type_or_their_scales() {
    let (dir, tensors) = folder("llama", json!({}));
    let name = "model.layers.1.mlp.up_proj.weight";
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, tensor)| {
            let bytes = flat(tensor).iter().flat_map(|value| value.to_le_bytes()).collect();
            (name.clone(), tensor.dims().to_vec(), bytes)
        })
        .collect();
    let views = bytes.iter().map(|(other, shape, bytes)| {
        let (dtype, bytes) =
            if other == name { (Dtype::F8_E4M3, &bytes[..bytes.len() / 4]) } else { (Dtype::F32, &bytes[..]) };
        (other.clone(), TensorView::new(dtype, shape.clone(), bytes).expect("a tensor"))
    });
    let file = safetensors::serialize(views, None).expect("serialises");
    std::fs::write(dir.path().join("model.safetensors"), file).expect("writable");
    let message = open(dir.path()).expect_err("refused");
    assert!(message.contains(&format!("tensor `{name}` has type F8_E4M3, allowed are F32, F16 and BF16")), "{message}");

    let mut scaled = tensors.clone();
    scaled.insert(format!("{name}_scale_inv"), Tensor::ones((1, 1), DType::F32, &Device::Cpu).expect("a tensor"));
    save(&dir, "model.safetensors", &scaled);
    let message = open(dir.path()).expect_err("refused");
    assert!(message.contains(&format!("tensor `{name}_scale_inv`")) && message.contains("quantised"), "{message}");
}

#[test]
fn tensors_that_the_model_does_not_have_are_refused_by_name() {
    let bias = |value: f32, size: usize| Tensor::full(value, size, &Device::Cpu).expect("a tensor");
    let (o, down) = ("model.layers.0.self_attn.o_proj.bias", "model.layers.2.mlp.down_proj.bias");
    for (name, tensor, wanted) in [
        ("score.weight", bias(1.0, 64), Some("tensor `score.weight` is not part of the model, which has 3 layers")),
        ("model.layers.3.input_layernorm.weight", bias(1.0, 64), Some("`model.layers.3.input_layernorm.weight`")),
        ("model.layers.0.self_attn.q_norm.weight", bias(1.0, 16), Some("`model.layers.0.self_attn.q_norm.weight`")),
        ("model.layers.0.self_attn.q_proj.bias", bias(1.0, 64), Some("does not say `\"attention_bias\": true`")),
        (o, bias(0.5, 64), Some("o_proj.bias` holds 0.5: biases there are not supported")),
        (down, bias(-1.0, 64), Some("down_proj.bias` holds -1")),
        (o, bias(0.0, 64), None),
        (down, bias(0.0, 64), None),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", bias(1.0, 8), None),
    ] {
        let (dir, mut tensors) = folder("llama", json!({}));
        tensors.insert(name.to_owned(), tensor);
        save(&dir, "model.safetensors", &tensors);
        match (open(dir.path()), wanted) {
            (Ok(files), None) => assert_eq!(files.warnings, Vec::<String>::new()),
            (Err(message), Some(wanted)) => assert!(message.contains(wanted), "{message}"),
            (result, _) => panic!("{name}: {result:?}"),
        }
    }
}

#[test]
fn a_missing_head_is_tied_only_where_the_file_says_so() {
    let head = "lm_head.weight";
    for tie in [json!(false), Value::Null] {
        let (dir, mut tensors) = folder("llama", json!({"tie_word_embeddings": tie}));
        tensors.remove(head);
        save(&dir, "model.safetensors", &tensors);
        let message = open(dir.path()).expect_err("no head");
        assert!(message.contains("tensor `lm_head.weight` is missing"), "{message}");
    }
    // A tied model may have the head as well; if it is another one, somebody is wrong.
    let (dir, mut tensors) = folder("llama", json!({"tie_word_embeddings": true}));
    let files = open(dir.path()).expect("tied");
    assert!(!files.weights.has(Slot::Head) && files.warnings[0].contains("`lm_head.weight` is not used"));
    tensors.insert(head.into(), tensors["model.embed_tokens.weight"].clone());
    save(&dir, "model.safetensors", &tensors);
    assert_eq!(open(dir.path()).expect("tied").warnings, Vec::<String>::new());
    tensors.remove(head);
    save(&dir, "model.safetensors", &tensors);
    assert!(load(&open(dir.path()).expect("tied"), WeightDtype::F32).is_ok());
}

#[test]
fn the_index_decides_which_files_are_read() {
    let (dir, tensors) = folder("llama", json!({}));
    std::fs::remove_file(dir.path().join("model.safetensors")).expect("there");
    let first = ["lm_head.weight", "model.norm.weight"];
    let rest: Vec<&str> = tensors.keys().map(String::as_str).filter(|name| !first.contains(name)).collect();
    save(&dir, "a.safetensors", &only(&tensors, &first));
    save(&dir, "b.safetensors", &only(&tensors, &rest));
    let place = |name: &str| if first.contains(&name) { "a.safetensors" } else { "b.safetensors" };
    let map: HashMap<&str, &str> = tensors.keys().map(|name| (name.as_str(), place(name))).collect();
    let index = json!({"metadata": {}, "weight_map": map});
    write(&dir, "model.safetensors.index.json", &index);
    // Beside them another head, which comes last in the order of names.
    let stray =
        HashMap::from([("lm_head.weight".to_owned(), tensors["lm_head.weight"].affine(2.0, 0.0).expect("a tensor"))]);
    save(&dir, "z.safetensors", &stray);
    let files = open(dir.path()).expect("complete");
    assert_eq!(values(&files, Slot::Head), flat(&tensors["lm_head.weight"]));
    assert_eq!(files.warnings, ["`z.safetensors` not read: model.safetensors.index.json does not name them"]);
    assert!(load(&files, WeightDtype::F32).is_ok());

    save(&dir, "a.safetensors", &only(&tensors, &first[1..]));
    let message = open(dir.path()).expect_err("no head");
    assert!(message.contains("a.safetensors: tensor `lm_head.weight` is missing, which the index says"), "{message}");
    std::fs::remove_file(dir.path().join("a.safetensors")).expect("there");
    let message = open(dir.path()).expect_err("no file");
    assert!(message.contains("file `a.safetensors` is missing"), "{message}");
    // Without an index, nothing says which of two is meant.
    std::fs::remove_file(dir.path().join("model.safetensors.index.json")).expect("there");
    save(&dir, "a.safetensors", &only(&tensors, &first));
    let message = open(dir.path()).expect_err("two heads");
    assert!(message.contains("z.safetensors: tensor `lm_head.weight` is also in `a.safetensors`"), "{message}");
}

#[test]
fn files_of_other_systems_are_skipped() {
    let (dir, _) = folder("llama", json!({}));
    std::fs::write(dir.path().join("._model.safetensors"), [0, 5, 22, 7]).expect("writable");
    assert!(open(dir.path()).is_ok());
}

#[test]
fn weights_that_are_not_finite_are_named() {
    for (name, bad, dtype) in [
        ("model.layers.1.mlp.up_proj.weight", f32::NAN, DType::F32),
        ("model.layers.1.mlp.up_proj.weight", f32::INFINITY, DType::BF16),
        ("model.embed_tokens.weight", f32::NEG_INFINITY, DType::F16),
        ("model.layers.0.input_layernorm.weight", f32::NAN, DType::F32),
    ] {
        let (dir, mut tensors) = folder("llama", json!({}));
        let mut values = flat(&tensors[name]);
        values[5] = bad;
        let tensor =
            Tensor::from_vec(values, tensors[name].dims(), &Device::Cpu).and_then(|tensor| tensor.to_dtype(dtype));
        tensors.insert(name.to_owned(), tensor.expect("a tensor"));
        save(&dir, "model.safetensors", &tensors);
        let files = open(dir.path()).expect("opens");
        let message = load(&files, WeightDtype::Native).expect_err("not finite");
        let wanted = format!("tensor `{name}` holds {bad} at index 5, allowed are finite numbers");
        assert!(message.contains(&wanted), "{message}");
        #[cfg(feature = "cuda-emulation")]
        assert!(load_cuda(&files, WeightDtype::Native).is_err_and(|message| message.contains(&wanted)), "{name}");
    }
}

#[cfg(feature = "cuda-emulation")]
fn load_cuda(files: &ModelFiles, dtype: WeightDtype) -> Result<(), String> {
    use tokenrouter_engine::runner::{CudaRunner, CudaShapes};
    let options = RunnerOptions { kv: (4, 16), ..RunnerOptions::default() };
    let devices = [tokenrouter_kernels::cuda::Device::emulated()];
    let shapes = CudaShapes { tokens: 4, rows: 1, graphs: Vec::new() };
    let weights = (&files.weights, &files.patches);
    CudaRunner::load(&files.arch, weights, dtype, &options, (&devices, &shapes))
        .map(drop)
        .map_err(|error| error.to_string())
}

#[cfg(feature = "cuda-emulation")]
#[test]
fn a_weight_beyond_f16_is_named_where_weights_become_f16() {
    let (dir, mut tensors) = folder("llama", json!({}));
    let name = "model.layers.2.mlp.gate_proj.weight";
    let mut values = flat(&tensors[name]);
    values[7] = 1e5;
    tensors.insert(name.into(), Tensor::from_vec(values, tensors[name].dims(), &Device::Cpu).expect("a tensor"));
    save(&dir, "model.safetensors", &tensors);
    let files = open(dir.path()).expect("opens");
    assert_eq!(load_cuda(&files, WeightDtype::F32), Ok(()));
    let message = load_cuda(&files, WeightDtype::F16).expect_err("too large");
    assert!(message.contains(&format!("tensor `{name}` holds 100000 at index 7")), "{message}");
}

#[test]
fn prompts_are_neither_cut_nor_filled_up() {
    let (dir, _) = folder("llama", json!({}));
    let path = dir.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    tokenizer["truncation"] = json!({"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    tokenizer["padding"] = json!({"strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "t0"});
    write(&dir, "tokenizer.json", &tokenizer);
    let text = open(dir.path()).expect("opens").text;
    let words: Vec<String> = (1..21).map(|i| format!("t{i}")).collect();
    assert_eq!(text.encode(&words.join(" ")).expect("tokens"), (1..21).collect::<Vec<u32>>());
}

#[test]
fn every_file_may_name_tokens_that_end_an_answer() {
    let (dir, _) = folder("llama", json!({"eos_token_id": [5, 2]}));
    assert_eq!(open(dir.path()).expect("opens").eos, [2, 5]);
    write(&dir, "generation_config.json", &json!({"eos_token_id": [9, 2]}));
    for token in [json!("t7"), json!({"__type": "AddedToken", "content": "t7", "special": true})] {
        write(&dir, "tokenizer_config.json", &json!({ "eos_token": token }));
        assert_eq!(open(dir.path()).expect("opens").eos, [2, 5, 7, 9]);
    }
    write(&dir, "tokenizer_config.json", &json!({"eos_token": "</s>"}));
    assert!(open(dir.path()).expect("opens").warnings[0].contains("is `</s>`, which is no token"));
    let (dir, _) = folder("llama", json!({"eos_token_id": null}));
    assert!(open(dir.path()).expect_err("endless").contains("`eos_token_id` is missing"));
    write(&dir, "tokenizer_config.json", &json!({"eos_token": "t3"}));
    assert_eq!(open(dir.path()).expect("opens").eos, [3]);
    std::fs::write(dir.path().join("generation_config.json"), "{\"eos_token_id\": 2").expect("writable");
    assert!(open(dir.path()).expect_err("broken").contains("generation_config.json: not valid JSON"));
    write(&dir, "generation_config.json", &json!({"eos_token_id": "t2"}));
    assert!(open(dir.path()).expect_err("a text").contains("key `eos_token_id` is `\"t2\"`, allowed is a token id"));
}

#[test]
fn settings_of_the_tokenizer_are_used_or_refused() {
    let (dir, _) = folder("llama", json!({}));
    let encoded = |config: Value| {
        write(&dir, "tokenizer_config.json", &config);
        open(dir.path()).map(|files| files.text.encode("t4 t5").expect("tokens"))
    };
    assert_eq!(encoded(json!({"bos_token": "t1"})), Ok(vec![4, 5]));
    assert_eq!(encoded(json!({"bos_token": "t1", "add_bos_token": false})), Ok(vec![4, 5]));
    assert_eq!(encoded(json!({"bos_token": {"content": "t1"}, "add_bos_token": true})), Ok(vec![1, 4, 5]));
    assert_eq!(encoded(json!({"added_tokens_decoder": {"4": {"content": "t4"}}})), Ok(vec![4, 5]));
    for (config, wanted) in [
        (json!({"add_bos_token": true}), "`add_bos_token` is true, but `bos_token` is missing"),
        (json!({"add_bos_token": true, "bos_token": "<s>"}), "`bos_token` is `<s>`, which is no token"),
        (json!({"add_eos_token": true}), "key `add_eos_token` is `true`"),
        (json!({"added_tokens_decoder": {"9": {"content": "t4"}}}), "`t4` is token 9, tokenizer.json says 4"),
        (json!({"added_tokens_decoder": {"96": {"content": "<new>"}}}), "tokenizer.json does not have it"),
    ] {
        let message = encoded(config).expect_err("refused");
        assert!(message.contains(wanted) && message.contains("tokenizer_config.json"), "{message}");
    }
    // And the other way round: tokenizer.json adds a token, the configuration says no.
    let path = dir.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    tokenizer["post_processor"] = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "t1", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"t1": {"id": "t1", "ids": [1], "tokens": ["t1"]}}});
    std::fs::write(&path, tokenizer.to_string()).expect("writable");
    assert_eq!(encoded(json!({"bos_token": "t1"})), Ok(vec![1, 4, 5]));
    assert_eq!(encoded(json!({"bos_token": "t1", "add_bos_token": true})), Ok(vec![1, 4, 5]));
    assert_eq!(encoded(json!({"bos_token": "t1", "add_bos_token": false})), Ok(vec![4, 5]));
}

/// Printers write an error and its sources: none of them may be part of the message above it.
#[test]
fn no_error_repeats_its_source() {
    use std::error::Error;
    let yaml = "models: {small: {path: /no/such/model}, large: {path: /no/such/model}}\nrouting: {method: random}\n";
    let config = tokenrouter_engine::Config::from_yaml(yaml, "test.yaml").expect("valid");
    let launch = tokenrouter_engine::Engine::launch(&config).map(drop).expect_err("no files");
    let dir = tempfile::tempdir().expect("a folder");
    let empty = ModelConfig { path: Some(dir.path().to_owned()), ..ModelConfig::default() };
    let no_config = ModelFiles::open(&empty).expect_err("no config.json");
    let head = tokenrouter_engine::heads::HeadFile::read(Path::new("/no/such/head")).map(drop).expect_err("no file");
    let errors: [Box<dyn Error>; 3] = [Box::new(launch), Box::new(no_config), Box::new(head)];
    for error in errors {
        let mut current: &dyn Error = &*error;
        while let Some(source) = current.source() {
            assert!(!current.to_string().contains(&source.to_string()), "{current} and its source {source}");
            current = source;
        }
        assert!(error.to_string().contains("/no/such") || error.to_string().contains("config.json"), "{error}");
    }
}
