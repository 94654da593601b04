//! `make-draft` and `train-router` as a user runs them, on the demo model with very few tokens.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tokenrouter_engine::config::ModelConfig;
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_testing::tiny;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trbench"));
    command.current_dir(root()).args(args).stdin(Stdio::null()).output().expect("the binary starts")
}

fn succeed(args: &[&str]) -> Value {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    // A run says its thresholds and where its results are.
    let quiet = args[0] == "run" || errors.is_empty();
    assert!(output.status.success() && quiet, "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn tiny_model(dir: &Path) -> String {
    let config = tiny::config("llama");
    tiny::write(dir, &config, &tiny::tensors(&config, 1));
    dir.to_str().expect("utf-8").to_owned()
}

#[test]
fn a_draft_of_the_demo_model_loads_with_its_patch() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("patch.safetensors");
    let out = path.to_str().expect("utf-8");
    let text = dir.path().join("text.txt");
    std::fs::write(&text, "The sky is blue.\n\nWater is wet, and so is rain.\n").expect("writable");
    let text = text.to_str().expect("utf-8");
    let few =
        ["--text", text, "--large-dtype", "native", "--tokens", "96", "--length", "12", "--output", "json", "-o", out];
    let few = [&few[..], &["--output-vocab", "1000"]].concat();
    let report = succeed(&[&["make-draft", "--source", "demo", "--layers", "0-12,19-29"], &few[..]].concat());
    let gap = &report["gaps"][0];
    assert_eq!((gap["layer"].as_u64(), gap["dropped"].as_u64()), (Some(19), Some(6)));
    for texts in ["held_out", "written"] {
        for kind in ["plain", "patched"] {
            let top1 = report[texts][kind]["top1"].as_f64().expect("a share");
            let covered = report[texts][kind]["covered"].as_f64().expect("a share");
            assert!((0.0..=1.0).contains(&top1) && (0.0..=1.0).contains(&covered), "{report}");
        }
    }
    let layers: Vec<usize> = (0..13).chain(19..30).collect();
    let config = ModelConfig {
        source: Some("demo".into()),
        layers: Some(layers),
        patch: Some(path.clone()),
        ..ModelConfig::default()
    };
    let files = ModelFiles::open(&config).expect("the patch fits");
    assert_eq!(files.patches.keys().copied().collect::<Vec<_>>(), [19]);
    let tokens = files.arch.head_tokens.as_deref().expect("a part of the vocabulary");
    assert!(tokens.len() == 1000 && report["output_vocab"] == 1000 && files.eos.iter().all(|id| tokens.contains(id)));
    let before = std::fs::read(&path).expect("the file");
    succeed(&[&["make-draft", "--source", "demo", "--layers", "0-12,19-29"], &few[..]].concat());
    assert!(before == std::fs::read(&path).expect("the file"), "the same command gives the same file");
}

/// All tensors of a file of `trbench generate`, as bytes.
fn data(path: &Path) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(path).expect("readable");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut tensors: Vec<_> =
        file.tensors().into_iter().map(|(name, view)| (name, view.shape().to_vec(), view.data().to_vec())).collect();
    tensors.sort();
    tensors
}

#[test]
fn generated_data_depend_on_the_arguments_only_and_grow() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("model");
    std::fs::create_dir(&folder).expect("a folder");
    let model = tiny_model(&folder);
    let prompts = dir.path().join("prompts.jsonl");
    let lines = "{\"tokens\": [5, 6, 7]}\n{\"prompt\": \"t8 t9\", \"then\": [\"t10\"]}\n\n{\"tokens\": [11]}\n";
    std::fs::write(&prompts, lines).expect("writable");
    let generate = |out: &str, more: &[&str]| {
        let out = dir.path().join(out);
        let base = ["generate", "--model", &model, "--prompts", prompts.to_str().expect("utf-8")];
        let sizes = ["--length", "12", "--sequences", "5", "--top-k", "4", "--output", "json", "-o"];
        succeed(&[&base[..], &sizes[..], &[out.to_str().expect("utf-8")], more].concat())
    };
    let first = generate("a", &["--tokens", "100", "--batch", "2", "--threads", "1"]);
    let parts = first["parts"].as_u64().expect("a number");
    assert!(parts >= 2 && first["tokens"].as_u64() >= Some(100), "{first}");
    // The same in another batch, and in two runs.
    generate("b", &["--tokens", "40", "--batch", "4", "--threads", "2"]);
    let second = generate("b", &["--tokens", "100", "--batch", "3"]);
    assert!(second["parts"] == parts && second["tokens"] == first["tokens"] && second["new_tokens"] != first["tokens"]);
    for part in 0..parts {
        let file = |folder: &str| dir.path().join(folder).join(format!("part-{part:05}.safetensors"));
        assert!(data(&file("a")) == data(&file("b")), "part {part}");
    }
    let tensors = data(&dir.path().join("a/part-00000.safetensors"));
    let names: Vec<&str> = tensors.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["offsets", "temperature", "tokens", "top_ids", "top_logprobs", "written"]);
    assert_eq!((tensors[0].1[0], tensors[1].1[0], tensors[3].1[1]), (6, 5, 4));
    // A greedy sequence follows its own likeliest tokens.
    let greedy = generate("c", &["--tokens", "1", "--temperature", "0"]);
    assert_eq!(greedy["parts"], 1);
    let tensors = data(&dir.path().join("c/part-00000.safetensors"));
    let ints = |bytes: &[u8]| -> Vec<i32> {
        bytes.chunks(4).map(|b| i32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()
    };
    let (tokens, top, written) = (ints(&tensors[2].2), ints(&tensors[3].2), &tensors[5].2);
    let followed = (1..tokens.len()).filter(|at| written[*at] == 1);
    assert!(followed.clone().count() > 5 && followed.into_iter().all(|at| tokens[at] == top[(at - 1) * 4]));
    let other = dir.path().join("a").to_str().expect("utf-8").to_owned();
    let pair = dir.path().join("pair.yaml");
    let yaml = format!(
        "models: {{a: {{path: {model}, threads: 1}}, b: {{path: {model}, threads: 1}}}}\n\
         routing: {{method: random, probability: 0.5}}\nsystem: {{max_active: 3}}\n"
    );
    std::fs::write(&pair, yaml).expect("writable");
    let pair = pair.to_str().expect("utf-8");
    let refused = run(&[
        &["generate", "--model", &model, "--prompts", prompts.to_str().expect("utf-8")][..],
        &["--top-k", "4", "--length", "12", "--config", pair, "-o", &other],
    ]
    .concat());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--config does not go with prompts that have `then`"));
    // Two models with the same weights write greedily what one of them writes.
    std::fs::write(&prompts, "{\"tokens\": [5, 6, 7]}\n{\"tokens\": [11]}\n").expect("writable");
    let greedy = ["--tokens", "60", "--temperature", "0", "--ignore-eos"];
    generate("alone", &greedy);
    let routed = generate("routed", &[&greedy[..], &["--config", pair]].concat());
    assert_eq!(routed["tokens"], 60, "all sequences go on to their length");
    let file = |folder: &str| data(&dir.path().join(folder).join("part-00000.safetensors"));
    assert!(file("alone") == file("routed"));
    let refused = run(&["generate", "--model", &model, "--seed", "1", "--top-k", "4", "-o", &other]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("was written with seed 0, not 1"));
    std::fs::write(&prompts, "{\"tokens\": [96]}\n").expect("writable");
    let refused = run(&["generate", "--model", &model, "--prompts", prompts.to_str().expect("utf-8"), "-o", &other]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("prompts.jsonl:1: `tokens` holds 96, allowed are ids below 96"), "{message}");
}

#[test]
fn a_trained_head_routes() {
    let dir = tempfile::tempdir().expect("a folder");
    let yaml = std::fs::read_to_string(root().join("config/entropy/demo.yaml")).expect("the configuration");
    let models = yaml.split("routing:").next().expect("models");
    let models = models.replace("../", &format!("{}/", root().join("config").display()));
    let models = models.replace("dtype: f32", "dtype: native");
    let pair = dir.path().join("pair.yaml");
    std::fs::write(&pair, format!("{models}routing:\n  method: entropy\n")).expect("writable");
    let out = dir.path().join("{kind}.safetensors");
    let reports = succeed(&[
        "train-router",
        "-c",
        pair.to_str().expect("utf-8"),
        "--kind",
        "r2r,citer,collm",
        "--tokens",
        "200",
        "--length",
        "16",
        "--epochs",
        "2",
        "--hidden",
        "8",
        "--output",
        "json",
        "-o",
        out.to_str().expect("utf-8"),
    ]);
    let kinds = [("r2r", "r2r_mlp"), ("citer", "citer_mlp"), ("collm", "deferral_row")];
    for (report, (kind, name)) in reports.as_array().expect("a list").iter().zip(kinds) {
        assert_eq!(report["kind"], name);
        let threshold = report["recommended"]["threshold"].as_f64().expect("a threshold");
        assert!((0.0..=1.0).contains(&threshold), "{report}");
        let config = dir.path().join(format!("{kind}.yaml"));
        let routing = format!("routing:\n  method: {kind}\n  weights: {kind}.safetensors\n");
        std::fs::write(&config, format!("{models}{routing}")).expect("writable");
        let results = dir.path().join(kind);
        let run = succeed(&[
            "run",
            "-c",
            config.to_str().expect("utf-8"),
            "--num-prompts",
            "1",
            "--max-tokens",
            "6",
            "--output",
            "json",
            "--out",
            results.to_str().expect("utf-8"),
        ]);
        assert_eq!(run[0]["completed"], 1, "{run}");
    }
    assert_eq!(reports.as_array().map(Vec::len), Some(3));
}

#[test]
fn mistakes_are_usage_errors_that_name_what_is_allowed() {
    let dir = tempfile::tempdir().expect("a folder");
    let (model, other) = (dir.path().join("model"), dir.path().join("empty.txt"));
    std::fs::create_dir(&model).expect("a folder");
    let model = tiny_model(&model);
    std::fs::write(&other, "only one document\n").expect("writable");
    let (empty, out) = (other.to_str().expect("utf-8"), dir.path().join("out.safetensors"));
    let out = out.to_str().expect("utf-8");
    let draft = ["make-draft", "--source", &model, "-o", out];
    let mixed = dir.path().join("mixed.yaml");
    let yaml = format!("models: {{a: {{source: demo}}, b: {{path: '{model}'}}}}\nrouting: {{method: entropy}}\n");
    std::fs::write(&mixed, yaml).expect("writable");
    let mixed = mixed.to_str().expect("utf-8");
    let train = ["train-router", "--kind", "r2r", "-o", out];
    for (command, rest, wanted) in [
        (&draft[..], &["--layers", "0,7"][..], "--layers names layer 7, the model has layers 0 to 2"),
        (&draft, &["--keep", "3"], "the model has 3, allowed are 1 to 2"),
        (&draft, &["--keep", "0"], "allowed are 1 to 2"),
        (&draft, &["--layers", "2,1"], "`1` is not above"),
        (&draft, &["--keep", "2", "--text", empty], "has 1 documents, at least 2 are needed"),
        (&draft, &["--keep", "2", "--text", "/nowhere.txt"], "cannot read text `/nowhere.txt`"),
        (&draft, &["--keep", "2", "--ridge=-1"], "--ridge -1 is not allowed"),
        (&draft, &["--keep", "2", "--tokens", "0"], "--tokens 0 is not allowed"),
        (&draft, &["--keep", "2", "--dtype", "int3"], "allowed are native, f32 and bf16"),
        (&draft, &[], "--keep"),
        (&train, &["-c", mixed], "models `a` and `b` have different vocabularies"),
        (&train, &["-c", "config/random/emulated.yaml"], "is emulated"),
        (&train, &["-c", mixed, "--large", "c"], "--large c is not a model besides `a`, allowed are: b"),
        (&train, &["-c", mixed, "--share", "1.5"], "--share 1.5 is not allowed"),
        (&train, &["-c", mixed, "--kind", "citer"], "put `{kind}` into it"),
        (&train, &["-c", mixed, "--text", empty], "at least 2 are needed"),
    ] {
        let output = run(&[command, rest].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{rest:?}: {errors}");
        assert!(errors.contains(wanted), "{rest:?}: {errors}");
        assert!(!Path::new(out).exists());
    }
}
