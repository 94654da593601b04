//! Router heads: the file form, what it refuses, and scores that do not depend on the batch. (That scores equal torch's
//! is tested in `trbench`, where the authors' files are converted.)

use std::collections::BTreeMap;

use half::bf16;
use proptest::prelude::*;
use serde_json::json;
use tokenrouter_core::routing::HeadKind;
use tokenrouter_engine::heads::{
    About, CiterHead, DeferralRow, Head, HeadError, HeadFile, HeadProblem, HeadTensor, HeadValues, R2rHead, R2rInputs,
};

/// Numbers in -1..1 that look random.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

struct Builder(BTreeMap<String, HeadTensor>);

impl Builder {
    fn put(&mut self, name: &str, shape: &[usize]) -> &mut Self {
        let values = noise(self.0.len() as u64, shape.iter().product());
        self.0.insert(name.to_owned(), HeadTensor::f32(shape, values));
        self
    }

    fn linear(&mut self, prefix: &str, n: usize, k: usize) -> &mut Self {
        self.put(&format!("{prefix}.weight"), &[n, k]).put(&format!("{prefix}.bias"), &[n])
    }

    fn norm(&mut self, prefix: &str, width: usize) -> &mut Self {
        self.put(&format!("{prefix}.weight"), &[width]).put(&format!("{prefix}.bias"), &[width])
    }
}

const HIDDEN: usize = 20;
const EMBEDDING: usize = 12;
const TOP: usize = 10;

fn r2r() -> HeadFile {
    let mut b = Builder(BTreeMap::new());
    b.norm("layer_norm_hidden_states", HIDDEN).norm("layer_norm_token", EMBEDDING);
    b.linear("logits_projection", HIDDEN, TOP).linear("combined_projection", 18, 2 * HIDDEN + EMBEDDING);
    b.linear("backbone.input_projection", 18, 18);
    for (index, (width, out)) in [(18, 18), (18, 33), (33, 33)].into_iter().enumerate() {
        let prefix = format!("backbone.blocks.{index}");
        b.norm(&format!("{prefix}.layer_norm"), width).linear(&format!("{prefix}.mlp.0"), 4 * width, width);
        b.linear(&format!("{prefix}.mlp.3"), out, 4 * width);
        if width != out {
            b.linear(&format!("{prefix}.dim_change"), out, width);
        }
    }
    b.norm("backbone.output_layer.0", 33).linear("backbone.output_layer.1", 1, 33);
    let about = About {
        threshold: Some(0.406),
        source: Some("a test".into()),
        model: Some("small".into()),
        command: Some("none".into()),
        init_args: Some(json!({"dropout_rate": 0.1, "hidden_dims": [18, 33]})),
    };
    HeadFile { kind: HeadKind::R2rMlp, about, tensors: b.0 }
}

fn citer() -> HeadFile {
    citer_for(HIDDEN)
}

/// A head of CITER for hidden states of this width.
pub(crate) fn citer_for(hidden: usize) -> HeadFile {
    let mut b = Builder(BTreeMap::new());
    b.linear("mlp.0", 2 * hidden, hidden).norm("mlp.1", 2 * hidden).put("mlp.1.running_mean", &[2 * hidden]);
    b.linear("mlp.4", hidden, 2 * hidden).linear("linear", 1, hidden);
    let variance = noise(77, 2 * hidden).into_iter().map(|value| value.abs() + 0.1).collect();
    b.0.insert("mlp.1.running_var".into(), HeadTensor::f32([2 * hidden], variance));
    HeadFile { kind: HeadKind::CiterMlp, about: About::default(), tensors: b.0 }
}

fn deferral() -> HeadFile {
    let mut b = Builder(BTreeMap::new());
    b.linear("lm_head", 1, HIDDEN);
    HeadFile { kind: HeadKind::DeferralRow, about: About::default(), tensors: b.0 }
}

fn to_bf16(mut file: HeadFile) -> HeadFile {
    for tensor in file.tensors.values_mut() {
        tensor.values = HeadValues::Bf16(tensor.to_f32().into_iter().map(bf16::from_f32).collect());
    }
    file
}

fn files() -> [HeadFile; 6] {
    [r2r(), citer(), deferral(), to_bf16(r2r()), to_bf16(citer()), to_bf16(deferral())]
}

/// Scores rows `from..to` of a fixed sequence of inputs.
fn score(head: &Head, from: usize, to: usize, out: &mut Vec<f32>) {
    const ALL: usize = 150;
    let rows = |seed, width| noise(seed, ALL * width)[from * width..to * width].to_vec();
    let hidden = rows(1, HIDDEN);
    let done = match head {
        Head::R2r(head) => {
            let (embedding, logits) = (rows(2, EMBEDDING), rows(3, TOP));
            head.score(&R2rInputs { hidden: &hidden, embedding: &embedding, logits: &logits }, out)
        }
        Head::Citer(head) => head.score(&hidden, out),
        Head::Deferral(head) => head.score(&hidden, out),
    };
    done.expect("inputs that fit");
}

#[test]
fn a_score_does_not_depend_on_its_batch() {
    for file in files() {
        let head = Head::new(&file).expect("a head");
        let (mut all, mut out) = (Vec::new(), Vec::new());
        score(&head, 0, 150, &mut all);
        assert!(all.len() == 150 && all.iter().all(|score| (0.0..=1.0).contains(score)), "{all:?}");
        assert!(all.windows(2).any(|pair| pair[0] != pair[1]), "the score ignores its input");
        for (from, to) in [(0, 1), (7, 8), (0, 2), (3, 16), (60, 70), (1, 66), (149, 150), (5, 5), (10, 150)] {
            score(&head, from, to, &mut out);
            let bits = |scores: &[f32]| scores.iter().map(|score| score.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&out), bits(&all[from..to]), "{:?}, rows {from}..{to}", file.kind);
        }
    }
}

#[test]
fn a_file_comes_back_as_it_was_and_is_replaced_whole() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("head.safetensors");
    for file in files() {
        file.write(&path).expect("written");
        assert_eq!(HeadFile::read(&path).expect("read"), file);
        assert_eq!(std::fs::read(&path).expect("bytes"), file.to_bytes().expect("bytes"), "the bytes are determined");
        let head = Head::load(&path).expect("a head");
        assert_eq!((head.kind(), head.threshold()), (file.kind, file.about.threshold));
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 1, "nothing is left beside the file");
    let nowhere = dir.path().join("missing/head.safetensors");
    let error = deferral().write(&nowhere).expect_err("no folder").to_string();
    assert!(error.contains("missing/head.safetensors"), "{error}");
}

#[test]
fn sizes_come_from_the_tensors() {
    let sizes = r2r().sizes().expect("sizes");
    let got = (sizes.hidden, sizes.embedding, sizes.top_logits, sizes.normalize_input);
    assert_eq!(got, (HIDDEN, Some(EMBEDDING), Some(TOP), true));
    assert_eq!(citer().sizes().expect("sizes").hidden, HIDDEN);
    assert_eq!(deferral().parameters(), HIDDEN + 1);
}

/// What a changed file is refused with.
fn refusal(mut file: HeadFile, change: impl FnOnce(&mut HeadFile)) -> String {
    change(&mut file);
    match Head::new(&file) {
        Ok(_) => panic!("it is accepted"),
        Err(problem) => problem.to_string(),
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    for file in [r2r(), citer(), deferral()] {
        for name in file.tensors.keys().filter(|name| *name != "lm_head.bias") {
            let named = format!("`{name}`");
            let gone = refusal(file.clone(), |file| drop(file.tensors.remove(name)));
            // Without one of a pair of norms the other one may be named, without a block the next layer.
            assert!(gone.contains("missing") || gone.contains("not part of") || gone.contains("shape"), "{gone}");
            let shape = refusal(file.clone(), |file| {
                if let Some(tensor) = file.tensors.get_mut(name) {
                    tensor.shape.push(2);
                }
            });
            assert!(shape.contains(&named) && shape.contains("shape"), "{shape}");
            let value = refusal(file.clone(), |file| {
                if let Some(HeadTensor { values: HeadValues::F32(values), .. }) = file.tensors.get_mut(name) {
                    let last = values.len() - 1;
                    values[last] = f32::NAN;
                }
            });
            assert!(value.contains(&named) && value.contains("NaN") && value.contains("finite"), "{value}");
        }
    }
    let extra = |file: &mut HeadFile| {
        let position = HeadTensor::f32([2, 18], vec![0.0; 36]);
        file.tensors.insert("backbone.position_embedding".into(), position);
    };
    let message = refusal(r2r(), extra);
    assert_eq!(message, "tensor `backbone.position_embedding` is not part of a `r2r_mlp` head");
    let variance = refusal(citer(), |file| {
        file.tensors.insert("mlp.1.running_var".into(), HeadTensor::f32([2 * HIDDEN], vec![-1.0; 2 * HIDDEN]));
    });
    assert!(variance.contains("`mlp.1.running_var` has -1 at index 0"), "{variance}");
    let classes = refusal(r2r(), |file| {
        file.tensors.insert("backbone.output_layer.1.weight".into(), HeadTensor::f32([2, 33], vec![0.0; 66]));
    });
    assert!(classes.contains("shape [2, 33]") && classes.contains("1 row") && classes.contains("or 3"), "{classes}");
    let empty = refusal(r2r(), |file| {
        file.tensors.insert("logits_projection.weight".into(), HeadTensor::f32([HIDDEN, 0], Vec::new()));
    });
    assert!(empty.contains("`logits_projection.weight` has shape [20, 0]"), "{empty}");
}

/// Bytes of a file whose header was edited as text; the replacement is padded or must be as long.
fn edited(file: &HeadFile, from: &str, to: &str) -> Vec<u8> {
    let bytes = file.to_bytes().expect("bytes");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).expect("text");
    assert!(header.contains(from), "`{from}` is not in {header}");
    let header = header.replacen(from, to, 1).into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &bytes[8 + length..]].concat()
}

#[test]
fn headers_that_do_not_fit_are_refused() {
    let message = |bytes: &[u8]| HeadFile::from_bytes(bytes).expect_err("refused").to_string();
    for (from, to, expected) in [
        (r#""format":"tokenrouter-head""#, r#""format":"pt""#, "metadata `format` is `pt`, expected tokenrouter-head"),
        (r#""version":"1""#, r#""version":"2""#, "metadata `version` is `2`, expected 1"),
        (r#""kind":"r2r_mlp""#, r#""kind":"mlp""#, "metadata `kind` is `mlp`, expected one of r2r_mlp, citer_mlp,"),
        (r#""kind":"r2r_mlp","#, "", "metadata `kind` is missing"),
        (r#""threshold":"0.406""#, r#""threshold":"1.5""#, "metadata `threshold` is `1.5`, expected a number from 0"),
        (r#""threshold":"0.406""#, r#""threshold":"NaN""#, "metadata `threshold` is `NaN`"),
        (r#""hidden_size":"20""#, r#""hidden_size":"21""#, "metadata `hidden_size` is `21`, expected 20, as its"),
        (r#""normalize_input":"true""#, r#""normalize_input":"false""#, "`normalize_input` is `false`, expected true"),
        (r#""dtype":"F32""#, r#""dtype":"I32""#, "has type I32, allowed are F32 and BF16"),
        (r#""shape":["#, r#""shape":[7,"#, "not a readable safetensors file"),
    ] {
        let message = message(&edited(&r2r(), from, to));
        assert!(message.contains(expected), "{message}, expected {expected}");
    }
    let bytes = r2r().to_bytes().expect("bytes");
    for length in [0, 7, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        let problem = HeadFile::from_bytes(&bytes[..length]).expect_err("truncated");
        assert!(matches!(problem, HeadProblem::Truncated { got, .. } if got == length as u64), "{length}: {problem}");
    }
    assert!(message(&[&bytes[..], b"more"].concat()).contains("4 bytes follow the last tensor"));
    let path = std::path::Path::new("no-such-head.safetensors");
    let error = Head::load(path).expect_err("no file");
    assert!(matches!(error, HeadError::Io { .. }) && error.to_string().contains("no-such-head"), "{error}");
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let (mut out, hidden) = (Vec::new(), vec![0.0; 2 * HIDDEN]);
    let (embedding, logits) = (vec![0.0; 2 * EMBEDDING], vec![0.0; 2 * TOP]);
    let r2r = R2rHead::new(&r2r()).expect("a head");
    let inputs = R2rInputs { hidden: &hidden, embedding: &embedding, logits: &logits };
    r2r.score(&inputs, &mut out).expect("they fit");
    for (wrong, what) in [
        (R2rInputs { hidden: &hidden[1..], ..inputs }, "the hidden state"),
        (R2rInputs { embedding: &embedding[EMBEDDING..], ..inputs }, "the embedding"),
        (R2rInputs { logits: &logits[1..], ..inputs }, "the largest logits"),
    ] {
        let error = r2r.score(&wrong, &mut out).expect_err("refused").to_string();
        assert!(error.contains(what) && error.contains("expected"), "{error}");
    }
    assert!(CiterHead::new(&citer()).expect("a head").score(&hidden[1..], &mut out).is_err());
    assert!(DeferralRow::new(&deferral()).expect("a head").score(&hidden[1..], &mut out).is_err());
}

#[test]
fn a_nan_shows_in_its_row_alone() {
    let mut hidden = noise(1, 3 * HIDDEN);
    hidden[HIDDEN + 5] = f32::NAN;
    let (embedding, logits, mut out) = (noise(2, 3 * EMBEDDING), noise(3, 3 * TOP), Vec::new());
    for file in files() {
        match Head::new(&file).expect("a head") {
            Head::R2r(head) => {
                head.score(&R2rInputs { hidden: &hidden, embedding: &embedding, logits: &logits }, &mut out)
            }
            Head::Citer(head) => head.score(&hidden, &mut out),
            Head::Deferral(head) => head.score(&hidden, &mut out),
        }
        .expect("scores");
        let nan: Vec<bool> = out.iter().map(|score| score.is_nan()).collect();
        assert_eq!(nan, [false, true, false], "{:?}", file.kind);
    }
}

#[test]
fn what_could_not_be_loaded_is_not_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut file = deferral();
    file.about.threshold = Some(1.5);
    let error = file.write(&dir.path().join("a.safetensors")).expect_err("refused").to_string();
    assert!(error.contains("a.safetensors") && error.contains("`threshold` is `1.5`"), "{error}");
    let mut file = deferral();
    file.tensors.insert("lm_head.weight".into(), HeadTensor::f32([1, HIDDEN], vec![0.0; HIDDEN - 1]));
    let error = file.write(&dir.path().join("b.safetensors")).expect_err("refused").to_string();
    assert!(error.contains("expected [1, 20] and 20 values"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 0);
}

#[test]
fn deferral_is_the_sigmoid_of_a_dot_product() {
    let tensors = BTreeMap::from([("lm_head.weight".to_owned(), HeadTensor::f32([1, 3], vec![1.0, -2.0, 0.5]))]);
    let file = HeadFile { kind: HeadKind::DeferralRow, about: About::default(), tensors };
    let mut out = Vec::new();
    DeferralRow::new(&file).expect("a head").score(&[1.0, 0.0, 0.0, 3.0, 1.0, 2.0], &mut out).expect("scores");
    let expected = [1f64, 2.0].map(|x| (1.0 / (1.0 + (-x).exp())) as f32);
    assert!(out.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-6), "{out:?}");
}

proptest! {
    /// Broken files are refused or read, never more.
    #[test]
    fn changed_bytes_never_panic(edits in prop::collection::vec((0usize..6000, any::<u8>()), 1..8), cut in 0usize..9000) {
        let mut bytes = citer().to_bytes().expect("bytes");
        for (at, byte) in edits {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(cut);
        if let Ok(file) = HeadFile::from_bytes(&bytes) {
            let _accepted_or_not = Head::new(&file);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(HeadFile::from_bytes(&bytes).is_err());
    }
}
