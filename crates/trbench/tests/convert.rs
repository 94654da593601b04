//! `trbench convert-router`: the authors' files against torch's own scores, and files that want more than to be read.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use proptest::prelude::*;
use serde_json::Value;
use tokenrouter_core::routing::HeadKind;
use tokenrouter_engine::heads::{Head, HeadFile, HeadTensor, HeadValues, R2rInputs};
use trbench::convert::archive::Checkpoint;
use trbench::convert::pickle::{Object, Pickle, PickleError};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures/heads")
}

fn convert(input: &Path, output: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trbench"));
    command.arg("convert-router").arg(input).arg("-o").arg(output).args(more).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn floats(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(items) => items.iter().flat_map(floats).collect(),
        other => vec![other.as_f64().expect("a number") as f32],
    }
}

fn score(head: &Head, inputs: &Value) -> Vec<f32> {
    let (hidden, mut out) = (floats(&inputs["hidden"]), Vec::new());
    let done = match head {
        Head::R2r(head) => {
            let (embedding, logits) = (floats(&inputs["embedding"]), floats(&inputs["logits"]));
            head.score(&R2rInputs { hidden: &hidden, embedding: &embedding, logits: &logits }, &mut out)
        }
        Head::Citer(head) => head.score(&hidden, &mut out),
        Head::Deferral(head) => head.score(&hidden, &mut out),
    };
    done.expect("inputs that fit");
    out
}

#[test]
fn converted_heads_score_as_torch_does() {
    let expected = std::fs::read_to_string(fixtures().join("expected.json")).expect("expected.json");
    let expected: Value = serde_json::from_str(&expected).expect("JSON");
    let dir = tempfile::tempdir().expect("a folder");
    let cases = expected.as_object().expect("cases");
    assert_eq!(cases.len(), 8);
    for (name, case) in cases {
        let output = dir.path().join(format!("{name}.safetensors"));
        let more: &[&str] = if name.contains("bf16") { &["--kind", "r2r"] } else { &[] };
        let done = convert(&fixtures().join(name), &output, more);
        assert!(done.status.success() && done.stderr.is_empty(), "{name}: {}", text(&done.stderr));
        let line = text(&done.stdout);
        assert!(line.lines().count() == 1 && line.contains("hidden") && line.contains("parameters"), "{line}");
        let file = HeadFile::read(&output).expect("a head file");
        let kind = match case["kind"].as_str() {
            Some("r2r") => HeadKind::R2rMlp,
            Some("citer") => HeadKind::CiterMlp,
            _ => HeadKind::DeferralRow,
        };
        assert_eq!(file.kind, kind, "{name}");
        assert!(line.contains(kind.name()), "{line}");
        let head = Head::load(&output).expect("a head");
        assert_eq!(head.threshold(), case["threshold"].as_f64(), "{name}");
        let bf16 = file.tensors.values().any(|tensor| matches!(tensor.values, HeadValues::Bf16(_)));
        assert_eq!(bf16, name.contains("bf16") || name.starts_with("collm"), "{name}: precision is kept");
        let (got, scores) = (score(&head, &case["inputs"]), floats(&case["scores"]));
        assert_eq!(got.len(), scores.len());
        for (got, expected) in got.iter().zip(&scores) {
            // Rounding stays well below; GELU by its tanh formula would not.
            assert!((got - expected).abs() < 5e-6, "{name}: {got}, torch says {expected}");
        }
    }
}

#[test]
fn a_head_file_says_where_it_comes_from() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = dir.path().join("head.safetensors");
    let done = convert(&fixtures().join("r2r_plain.pt"), &output, &["--threshold", "0.25"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let about = HeadFile::read(&output).expect("a head file").about;
    assert_eq!(about.threshold, Some(0.25));
    assert_eq!(about.model.as_deref(), Some("fixture/small"));
    assert!(about.source.expect("a source").starts_with("r2r_plain.pt sha256:"));
    let command = "trbench convert-router r2r_plain.pt --threshold 0.25 -o head.safetensors";
    assert_eq!(about.command.as_deref(), Some(command));
    let args = about.init_args.expect("arguments");
    assert_eq!(args["model_type"], "HiddenStatesTokenLMHeadLogitsClassifier");
    assert_eq!(args["init_args"]["hidden_dims"], serde_json::json!([24, 24, 24]));
    assert_eq!(args["init_args"]["dtype"], "torch.float32");
    assert_eq!(args["common_args"]["threshold"], 0.406);
    let row = |more: &[&str]| {
        let done = convert(&fixtures().join("collm.bin"), &output, more);
        assert!(done.status.success(), "{}", text(&done.stderr));
        HeadFile::read(&output).expect("a head file").tensors["lm_head.weight"].clone()
    };
    assert_eq!(row(&["--row", "32"]), row(&[]), "the last row is the default");
    let first = row(&["--row", "0"]);
    assert_ne!(first, row(&[]));
    let done = convert(&fixtures().join("collm.safetensors"), &output, &["--row", "0"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(HeadFile::read(&output).expect("a head file").tensors["lm_head.weight"], first);
}

#[test]
fn views_of_storages_are_read_in_row_major_order() {
    let mut checkpoint = Checkpoint::open(&fixtures().join("views.pt")).expect("a checkpoint");
    let tensor = |checkpoint: &mut Checkpoint, name: &str| -> HeadTensor {
        let tensor = checkpoint.pickle.root().get(name).and_then(|object| object.tensor().cloned());
        checkpoint.tensor(name, &tensor.expect("a tensor")).expect("values")
    };
    let transposed = [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11].map(|value| value as f32);
    assert_eq!(tensor(&mut checkpoint, "transposed"), HeadTensor::f32([4, 3], transposed.to_vec()));
    let tail = (4..12).map(|value| value as f32).collect();
    assert_eq!(tensor(&mut checkpoint, "tail"), HeadTensor::f32([2, 4], tail));
    let numbers = checkpoint.pickle.root().get("numbers").and_then(Object::to_json);
    assert_eq!(numbers, Some(serde_json::json!([1, -2, 1_099_511_627_776_u64, 0.5, true, null, "text"])));
}

fn pickle(program: &[u8]) -> Result<Pickle, PickleError> {
    Pickle::parse(program)
}

#[test]
fn a_pickle_that_would_run_a_command_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = dir.path().join("head.safetensors");
    let done = convert(&fixtures().join("hostile.pt"), &output, &[]);
    assert_eq!(done.status.code(), Some(1));
    let message = text(&done.stderr);
    assert!(message.contains("`posix.system`") && message.contains("at byte"), "{message}");
    assert!(done.stdout.is_empty() && !output.exists());
    let refused = |program: &[u8], what: &str| match pickle(program) {
        Err(PickleError::Refused { what: got, offset }) => {
            assert!(got.contains(what) && offset < program.len(), "{got}, expected {what}");
        }
        other => panic!("{what}: {other:?}"),
    };
    refused(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.", "`os.system`");
    refused(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.", "`os.system`");
    refused(b"cbuiltins\neval\n.", "`builtins.eval`");
    refused(b"ctorch\nload\n.", "`torch.load`");
    refused(b"ctorch._utils\n_rebuild_tensor\n.", "`torch._utils._rebuild_tensor`");
    refused(b"ctorch\nfloat32\n)R.", "a call of");
    refused(b"N)R.", "a call of something");
    refused(b"NNb.", "attributes");
    refused(b"ccollections\nOrderedDict\n)\x81.", "instruction 0x81");
    refused(b"(cos\nsystem\no.", "`os.system`");
    refused(b"(ios\nsystem\n.", "instruction 0x69");
    refused(b"\x82\x01.", "instruction 0x82");
}

#[test]
fn pickles_that_make_no_sense_are_refused() {
    let storage = |count: u8| {
        let mut program = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK".to_vec();
        program.extend([count, b't', b'Q']);
        program
    };
    let tensor = |count: u8, offset: u8, shape: [u8; 2], stride: [u8; 2]| {
        let mut program = b"ctorch._utils\n_rebuild_tensor_v2\n(".to_vec();
        program.extend(storage(count));
        program.extend([b'K', offset, b'K', shape[0], b'K', shape[1], 0x86]);
        program.extend([b'K', stride[0], b'K', stride[1], 0x86, 0x89, b'N', b't', b'R', b'.']);
        program
    };
    assert!(pickle(&tensor(6, 0, [2, 3], [3, 1])).expect("a tensor").root().tensor().is_some());
    for wrong in [
        tensor(5, 0, [2, 3], [3, 1]),
        tensor(6, 1, [2, 3], [3, 1]),
        tensor(6, 0, [2, 3], [4, 1]),
        // A few elements that unfold to many.
        tensor(6, 0, [200, 200], [0, 0]),
    ] {
        assert!(pickle(&wrong).expect_err("refused").to_string().contains("does not fit its storage"));
    }
    for (program, problem) in [
        (&b""[..], "ends in the middle"),
        (b"\x80\x09.", "protocol 9"),
        (b".", "empty stack"),
        (b"K\x01(.", "empty stack"),
        (b"t.", "no mark"),
        (b"h\x05.", "nothing is remembered as 5"),
        (b"K\x01K\x02a.", "not a list"),
        (b"}K\x01K\x02K\x03(K\x01u.", "a key without a value"),
        (b"X\xff\xff\xff\xffabc", "ends in the middle"),
        (b"X\x02\0\0\0\xff\xfe.", "not UTF-8"),
        (b"\x8a\x09\0\0\0\0\0\0\0\0\x01.", "64 bits"),
        (b"cos", "a line without an end"),
        (b"NQ.", "not the name of a storage"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n(NNNNNNtR.", "without a storage"),
    ] {
        let error = pickle(program).expect_err("refused").to_string();
        assert!(error.contains(problem) && error.contains("at byte"), "{error}, expected {problem}");
    }
    // Objects that contain themselves, or unfold without end, are data; they have no JSON.
    assert!(pickle(b"]q\0h\0a.").expect("a list").root().to_json().is_none());
    let mut bomb = b"]q\0".to_vec();
    for level in 0..30u8 {
        bomb.extend([b']', b'q', level + 1, b'(', b'h', level, b'h', level, b'e']);
    }
    bomb.push(b'.');
    assert!(pickle(&bomb).expect("lists").root().to_json().is_none());
    let numbers = b"](\x8a\0\x8a\x01\xff\x8a\x02\0\x80J\xfe\xff\xff\xffM\x01\x02e.";
    let numbers = pickle(numbers).expect("numbers").root().to_json();
    assert_eq!(numbers, Some(serde_json::json!([0, -1, -32768, -2, 513])));
}

#[test]
fn usage_mistakes_and_unknown_files_are_told_apart() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = dir.path().join("head.safetensors");
    let code = |name: &str, more: &[&str]| {
        let done = convert(&fixtures().join(name), &output, more);
        assert!(done.stdout.is_empty() && !output.exists(), "{name}");
        (done.status.code(), text(&done.stderr))
    };
    for (name, more, expected, words) in [
        ("r2r_plain.pt", &["--threshold", "2"][..], 2, "expected a number from 0 to 1"),
        ("r2r_plain.pt", &["--kind", "r2r", "--row", "1"], 2, "`--row`"),
        ("r2r_plain.pt", &["--row", "1"], 2, "`--row`"),
        ("collm.safetensors", &["--kind", "citer"], 2, "Co-LLM"),
        ("collm.bin", &["--row", "33"], 1, "rows 0 to 32"),
        ("collm.safetensors", &["--row", "33"], 1, "rows 0 to 32"),
        ("r2r_plain.pt", &["--kind", "citer"], 1, "`model_type` is not a tensor"),
        ("citer.pth", &["--kind", "r2r"], 1, "`model_type` is missing"),
        ("views.pt", &[], 1, "no router that is known"),
        ("make.py", &[], 1, "neither a safetensors file nor a zip archive"),
        ("missing.pt", &[], 1, "missing.pt"),
    ] {
        let (got, message) = code(name, more);
        assert_eq!(got, Some(expected), "{name}: {message}");
        assert!(message.contains(words), "{message}, expected {words}");
    }
}

fn data_pkl(name: &str) -> Vec<u8> {
    let mut zip = zip::ZipArchive::new(std::fs::File::open(fixtures().join(name)).expect("file")).expect("zip");
    let entry = zip.file_names().map(|name| name.expect("a name").into_owned()).find(|name| name.ends_with("data.pkl"));
    let mut bytes = Vec::new();
    std::io::copy(&mut zip.by_name(&entry.expect("data.pkl")).expect("entry"), &mut bytes).expect("bytes");
    bytes
}

/// Reads a changed file to the end.
fn read_all(bytes: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    std::io::Write::write_all(&mut file, bytes).expect("written");
    let Ok(mut checkpoint) = Checkpoint::open(file.path()) else { return };
    let state = checkpoint.pickle.root().entries().unwrap_or_default();
    let tensors: Vec<_> = state.into_iter().filter_map(|(_, value)| value.tensor().cloned()).collect();
    for tensor in tensors {
        let _read_or_not = checkpoint.tensor("any", &tensor);
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _read_or_not = pickle(&bytes);
    }

    /// Random programs of known instructions get further than random bytes.
    #[test]
    fn random_programs_never_panic(
        codes in prop::collection::vec((prop::sample::select(&b"N\x88K\x8c)]}(t\x85\x86\x87aesuq\x94hQRb0."[..]), any::<u8>()), 0..80),
    ) {
        let program: Vec<u8> = codes.into_iter().flat_map(|(code, byte)| match code {
            b'K' | b'q' | b'h' => vec![code, byte % 4],
            0x8c => vec![code, 1, b'a' + byte % 26],
            _ => vec![code],
        }).collect();
        if let Ok(pickle) = pickle(&program) {
            let _shown = pickle.root().to_json();
        }
    }

    #[test]
    fn changed_pickles_never_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>()) {
        let mut bytes = data_pkl("r2r_bf16.pt");
        prop_assert!(pickle(&bytes[..cut.index(bytes.len())]).is_err(), "a truncated pickle has no end");
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(pickle) = pickle(&bytes) {
            let _shown = pickle.root().to_json();
        }
    }

    #[test]
    fn changed_files_never_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in prop::option::of(any::<prop::sample::Index>())) {
        for name in ["citer.pth", "views.pt"] {
            let mut bytes = std::fs::read(fixtures().join(name)).expect("fixture");
            for (at, byte) in &edits {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            bytes.truncate(cut.map_or(usize::MAX, |cut| cut.index(bytes.len())));
            read_all(&bytes);
        }
    }
}
