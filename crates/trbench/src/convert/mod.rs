//! `trbench convert-router`: the authors' checkpoints as head files, without executing anything in them.

pub mod archive;
pub mod pickle;
mod row;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use tokenrouter_core::routing::HeadKind;
use tokenrouter_engine::heads::{About, Head, HeadFile, HeadTensor};

use crate::digest::sha256_hex;
use crate::error::usage;
use archive::Checkpoint;
use pickle::Object;

/// R2R's architecture that is known.
const R2R_MODEL: &str = "HiddenStatesTokenLMHeadLogitsClassifier";
/// The small model's embeddings, which R2R keeps in some of its files. The engine has them anyway.
const EMBEDDINGS: &str = "token_embeddings.weight";
/// A counter that BatchNorm keeps in training.
const COUNTER: &str = "num_batches_tracked";

/// Whose checkpoint it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Family {
    /// R2R: a `.pt` file with its classifier and threshold.
    R2r,
    /// CITER: a `.pth` file with the state of its confidence network.
    Citer,
    /// Co-LLM: a model checkpoint (`.safetensors` or `.bin`) whose output matrix has a row for deferring.
    Collm,
}

/// Arguments of `trbench convert-router`.
#[derive(Debug, Clone, Args)]
pub struct ConvertArgs {
    /// The authors' file.
    input: PathBuf,
    /// The head file to write.
    #[arg(long, short, alias = "output", value_name = "SAFETENSORS")]
    out: PathBuf,
    /// Whose checkpoint it is, instead of what its contents look like.
    #[arg(long, value_enum)]
    kind: Option<Family>,
    /// The small model that the router was trained for, instead of what the file says.
    #[arg(long)]
    model: Option<String>,
    /// Threshold to recommend, from 0 to 1, instead of the file's.
    #[arg(long)]
    threshold: Option<f64>,
    /// Co-LLM: row of the output matrix that stands for deferring, instead of the last one.
    #[arg(long)]
    row: Option<usize>,
}

/// Converts and writes a summary.
pub fn run(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    if let Some(threshold) = args.threshold.filter(|threshold| !(0.0..=1.0).contains(threshold)) {
        return Err(usage(format!("`--threshold` is {threshold}, expected a number from 0 to 1")));
    }
    if args.row.is_some() && args.kind.is_some_and(|kind| kind != Family::Collm) {
        return Err(usage("`--row` goes with `--kind collm`"));
    }
    let file = convert(args).with_context(|| format!("cannot convert `{}`", args.input.display()))?;
    // Whatever is written can be loaded.
    let head = Head::new(&file).with_context(|| format!("cannot convert `{}`", args.input.display()))?;
    file.write(&args.out)?;
    let sizes = head.sizes();
    let size = |what: &str, size: Option<usize>| size.map_or(String::new(), |size| format!(", {what} {size}"));
    let threshold = head.threshold().map_or("none".into(), |threshold| threshold.to_string());
    writeln!(
        std::io::stdout().lock(),
        "{}: {}, hidden {}{}{}, {} parameters, threshold {threshold}",
        args.out.display(),
        file.kind.name(),
        sizes.hidden,
        size("embedding", sizes.embedding),
        size("top logits", sizes.top_logits),
        file.parameters()
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the authors' file.
fn convert(args: &ConvertArgs) -> anyhow::Result<HeadFile> {
    let (mut file, family) = if args.input.extension().is_some_and(|extension| extension == "safetensors") {
        let (tensors, init_args) = row::from_safetensors(&args.input, args.row)?;
        (deferral(tensors, init_args), Family::Collm)
    } else {
        let mut checkpoint = Checkpoint::open(&args.input)?;
        let family = args.kind.map_or_else(|| guess(checkpoint.pickle.root()), Ok)?;
        let file = match family {
            Family::R2r => r2r(&mut checkpoint),
            Family::Citer => citer(&mut checkpoint),
            Family::Collm => {
                let (tensors, init_args) = row::from_pickle(&mut checkpoint, args.row)?;
                Ok(deferral(tensors, init_args))
            }
        };
        (file?, family)
    };
    if args.kind.is_some_and(|kind| kind != family) {
        return Err(usage("a safetensors file is a Co-LLM checkpoint; R2R and CITER publish PyTorch files"));
    }
    if args.row.is_some() && family != Family::Collm {
        return Err(usage("`--row` is for Co-LLM checkpoints"));
    }
    let about = &mut file.about;
    about.threshold = args.threshold.or(about.threshold);
    about.model = args.model.clone().or(about.model.take());
    let name = args.input.file_name().unwrap_or_default().to_string_lossy().into_owned();
    about.source = Some(format!("{name} sha256:{}", sha256_hex(&mut File::open(&args.input)?)?));
    about.command = Some(command(args, &name));
    Ok(file)
}

/// What the contents look like.
fn guess(root: Object<'_>) -> anyhow::Result<Family> {
    let has = |key: &str| root.get(key).is_some();
    Ok(match () {
        () if has("state_dict") && has("model_type") => Family::R2r,
        () if has("mlp.0.weight") && has("linear.weight") => Family::Citer,
        () if has(row::WEIGHT) => Family::Collm,
        () => bail!(
            "it is no router that is known: R2R has `model_type` and `state_dict`, CITER `mlp.0.weight` and \
             `linear.weight`, Co-LLM `{}`",
            row::WEIGHT
        ),
    })
}

fn r2r(checkpoint: &mut Checkpoint) -> anyhow::Result<HeadFile> {
    let root = checkpoint.pickle.root();
    let need = |key: &str| root.get(key).with_context(|| format!("`{key}` is missing, R2R's checkpoints have it"));
    let model_type = need("model_type")?.text().unwrap_or_default();
    ensure!(model_type == R2R_MODEL, "its `model_type` is `{model_type}`, expected `{R2R_MODEL}`");
    let common = need("common_args")?;
    let threshold = match common.get("threshold").filter(|value| !value.is_none()) {
        Some(value) => Some(value.number().context("`common_args.threshold` is not a number")?),
        None => None,
    };
    let arguments = need("init_args")?;
    let model = arguments.get("pretrained_model_name").and_then(Object::text).map(str::to_owned);
    let mut init_args = Map::new();
    init_args.insert("model_type".into(), json!(model_type));
    for (name, value) in [("init_args", arguments), ("common_args", common)] {
        let value = value.to_json().with_context(|| format!("`{name}` is nested too deeply or too large"))?;
        init_args.insert(name.into(), value);
    }
    let about = About { threshold, model, init_args: Some(Value::Object(init_args)), ..About::default() };
    let names = names(need("state_dict")?, |name| name != EMBEDDINGS)?;
    Ok(HeadFile { kind: HeadKind::R2rMlp, about, tensors: read(checkpoint, names)? })
}

fn citer(checkpoint: &mut Checkpoint) -> anyhow::Result<HeadFile> {
    let names = names(checkpoint.pickle.root(), |name| !name.ends_with(COUNTER))?;
    Ok(HeadFile { kind: HeadKind::CiterMlp, about: About::default(), tensors: read(checkpoint, names)? })
}

fn deferral(tensors: BTreeMap<String, HeadTensor>, init_args: Value) -> HeadFile {
    let about = About { init_args: Some(init_args), ..About::default() };
    HeadFile { kind: HeadKind::DeferralRow, about, tensors }
}

/// The tensors of a state that are wanted.
fn names(state: Object<'_>, wanted: impl Fn(&str) -> bool) -> anyhow::Result<Vec<(String, pickle::TensorRef)>> {
    let entries = state.entries().context("the state is not a dictionary of tensors")?;
    let named = entries.into_iter().filter_map(|(name, value)| match name.text() {
        Some(name) if !wanted(name) => None,
        Some(name) => Some(
            value
                .tensor()
                .map(|tensor| (name.to_owned(), tensor.clone()))
                .with_context(|| format!("`{name}` is not a tensor")),
        ),
        None => Some(Err(anyhow::anyhow!("the state has a key that is not text"))),
    });
    named.collect()
}

fn read(
    checkpoint: &mut Checkpoint,
    names: Vec<(String, pickle::TensorRef)>,
) -> anyhow::Result<BTreeMap<String, HeadTensor>> {
    /// Most bytes of all tensors: many names may share one storage.
    const MAX_BYTES: usize = 2 << 30;
    let bytes = |tensor: &pickle::TensorRef| tensor.shape.iter().product::<usize>() * tensor.storage.element.bytes();
    let total = names.iter().try_fold(0usize, |total, (_, tensor)| total.checked_add(bytes(tensor)));
    ensure!(total.is_some_and(|total| total <= MAX_BYTES), "its tensors have more than {MAX_BYTES} bytes");
    let mut tensors = BTreeMap::new();
    for (name, tensor) in names {
        let values = checkpoint.tensor(&name, &tensor)?;
        tensors.insert(name, values);
    }
    Ok(tensors)
}

/// The command that makes the same file from an input of the same name.
fn command(args: &ConvertArgs, input: &str) -> String {
    let mut words = vec!["trbench convert-router".to_owned(), input.to_owned()];
    let kind = args.kind.and_then(|kind| kind.to_possible_value()).map(|value| value.get_name().to_owned());
    words.extend(kind.map(|kind| format!("--kind {kind}")));
    words.extend(args.model.as_ref().map(|model| format!("--model {model}")));
    words.extend(args.threshold.map(|threshold| format!("--threshold {threshold}")));
    words.extend(args.row.map(|row| format!("--row {row}")));
    words.push(format!("-o {}", args.out.file_name().unwrap_or_default().to_string_lossy()));
    words.join(" ")
}
