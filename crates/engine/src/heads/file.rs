//! The file form of heads: safetensors under the authors' tensor names, and metadata in the file's own header.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use half::bf16;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::{Map, Value, json};

use super::{CiterHead, DeferralRow, Head, HeadError, HeadProblem, R2rHead, sizes_of_hidden};
use tokenrouter_core::routing::{HeadKind, HeadSizes};

const FORMAT: &str = "tokenrouter-head";
const VERSION: &str = "1";
/// Largest file accepted, in bytes: several times the largest published head.
const MAX_FILE: u64 = 2 << 30;

/// Where a head comes from and how it is meant to be used.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct About {
    /// Recommended threshold, a score in `0..=1`.
    pub threshold: Option<f64>,
    /// What the head was made from.
    pub source: Option<String>,
    /// The small model whose hidden states it reads.
    pub model: Option<String>,
    /// The command that made the file.
    pub command: Option<String>,
    /// Anything else, such as the authors' constructor arguments.
    pub init_args: Option<Value>,
}

/// Values of a tensor in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub enum HeadValues {
    /// Single precision.
    F32(Vec<f32>),
    /// Brain floats; matrices are kept so.
    Bf16(Vec<bf16>),
}

/// A tensor of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadTensor {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// As many values as the dimensions say.
    pub values: HeadValues,
}

impl HeadTensor {
    /// A tensor of single-precision values.
    pub fn f32(shape: impl Into<Vec<usize>>, values: Vec<f32>) -> Self {
        Self { shape: shape.into(), values: HeadValues::F32(values) }
    }

    /// Its values in single precision.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.values {
            HeadValues::F32(values) => values.clone(),
            HeadValues::Bf16(values) => values.iter().map(|value| value.to_f32()).collect(),
        }
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        match &self.values {
            HeadValues::F32(values) => values.len(),
            HeadValues::Bf16(values) => values.len(),
        }
    }

    fn dtype(&self) -> (&'static str, usize) {
        match &self.values {
            HeadValues::F32(_) => ("F32", 4),
            HeadValues::Bf16(_) => ("BF16", 2),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match &self.values {
            HeadValues::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            HeadValues::Bf16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }
}

/// The contents of a head's file.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadFile {
    /// What the head is.
    pub kind: HeadKind,
    /// Where it comes from.
    pub about: About,
    /// Its tensors under the authors' names.
    pub tensors: BTreeMap<String, HeadTensor>,
}

impl HeadFile {
    /// Reads a file and checks its metadata against its tensors.
    pub fn read(path: &Path) -> Result<Self, HeadError> {
        let file = |problem| HeadError::File { path: path.to_owned(), problem: Box::new(problem) };
        let io = |reason| HeadError::Io { path: path.to_owned(), reason };
        let size = std::fs::metadata(path).map_err(io)?.len();
        if size > MAX_FILE {
            return Err(file(HeadProblem::TooLarge { got: size, most: MAX_FILE }));
        }
        Self::from_bytes(&std::fs::read(path).map_err(io)?).map_err(file)
    }

    /// From the bytes of a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HeadProblem> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| broken(bytes, &error))?;
        let empty = std::collections::HashMap::new();
        let metadata = header.metadata().as_ref().unwrap_or(&empty);
        let entry = |key: &str| metadata.get(key).map(String::as_str);
        expect("format", entry("format"), |value| value == FORMAT, FORMAT)?;
        expect("version", entry("version"), |value| value == VERSION, VERSION)?;
        let names = HeadKind::ALL.map(HeadKind::name).join(", ");
        let kind = entry("kind").and_then(HeadKind::from_name);
        let kind = kind.ok_or_else(|| metadata_problem("kind", entry("kind"), format!("one of {names}")))?;
        let stored = SafeTensors::deserialize(bytes).map_err(|error| broken(bytes, &error))?;
        let mut tensors = BTreeMap::new();
        for (name, view) in stored.iter() {
            tensors.insert(name.to_owned(), tensor(name, view.dtype(), view.shape(), view.data())?);
        }
        let text = |key: &str| entry(key).map(str::to_owned);
        let about = About {
            threshold: entry("threshold").map(threshold).transpose()?,
            source: text("source"),
            model: text("model"),
            command: text("command"),
            init_args: entry("init_args").map(init_args).transpose()?,
        };
        let file = Self { kind, about, tensors };
        let sizes = file.sizes()?;
        for (key, value) in size_entries(&sizes) {
            expect(key, entry(key), |got| got == value, &format!("{value}, as its tensors say"))?;
        }
        Ok(file)
    }

    /// Widths of the head's inputs, by its tensors.
    pub fn sizes(&self) -> Result<HeadSizes, HeadProblem> {
        match self.kind {
            HeadKind::R2rMlp => R2rHead::sizes_of(self),
            HeadKind::CiterMlp => CiterHead::hidden_of(self).map(sizes_of_hidden),
            HeadKind::DeferralRow => DeferralRow::hidden_of(self).map(sizes_of_hidden),
        }
    }

    /// Number of values of all tensors.
    pub fn parameters(&self) -> usize {
        self.tensors.values().map(HeadTensor::count).sum()
    }

    /// The bytes of a file: the same for the same contents. What could not be loaded is refused.
    pub fn to_bytes(&self) -> Result<Vec<u8>, HeadProblem> {
        let sizes = Head::new(self)?.sizes();
        let mut metadata = Map::new();
        let mut put = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                metadata.insert(key.to_owned(), Value::String(value));
            }
        };
        put("format", Some(FORMAT.into()));
        put("version", Some(VERSION.into()));
        put("kind", Some(self.kind.name().into()));
        if let Some(value) = self.about.threshold {
            put("threshold", Some(value.to_string()));
            threshold(&value.to_string())?;
        }
        for (key, value) in size_entries(&sizes) {
            put(key, Some(value));
        }
        put("source", self.about.source.clone());
        put("model", self.about.model.clone());
        put("command", self.about.command.clone());
        put("init_args", self.about.init_args.as_ref().map(Value::to_string));
        let mut header = Map::new();
        header.insert("__metadata__".into(), Value::Object(metadata));
        // Wide values first, as safetensors has it: every tensor is aligned to its type.
        let mut order: Vec<_> = self.tensors.iter().collect();
        order.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype().1));
        let mut data = Vec::new();
        for (name, tensor) in order {
            let start = data.len();
            data.extend(tensor.bytes());
            let info = json!({"dtype": tensor.dtype().0, "shape": tensor.shape, "data_offsets": [start, data.len()]});
            header.insert(name.clone(), info);
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let length = (header.len() as u64).to_le_bytes();
        Ok([length.to_vec(), header, data].concat())
    }

    /// Writes a file: whoever looks sees the old contents or the new ones, never a part.
    pub fn write(&self, path: &Path) -> Result<(), HeadError> {
        let bytes =
            self.to_bytes().map_err(|problem| HeadError::File { path: path.to_owned(), problem: Box::new(problem) })?;
        let temporary = beside(path);
        let written = std::fs::File::create_new(&temporary).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)
        });
        written.map_err(|reason| {
            // Nothing to do about a leftover that cannot be removed.
            let _removed = std::fs::remove_file(&temporary);
            HeadError::Io { path: path.to_owned(), reason }
        })
    }
}

/// A name in the same folder, and so in the same file system, that no one else uses.
fn beside(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{name}.{}.{number}.tmp", std::process::id()))
}

fn size_entries(sizes: &HeadSizes) -> Vec<(&'static str, String)> {
    let mut entries = vec![("hidden_size", sizes.hidden.to_string())];
    entries.extend(sizes.embedding.map(|size| ("embedding_size", size.to_string())));
    entries.extend(sizes.top_logits.map(|size| ("top_logits", size.to_string())));
    entries.push(("normalize_input", sizes.normalize_input.to_string()));
    entries
}

fn metadata_problem(key: &'static str, got: Option<&str>, expected: String) -> HeadProblem {
    HeadProblem::Metadata { key, got: got.map_or("missing".into(), |got| format!("`{got}`")), expected }
}

fn expect(key: &'static str, got: Option<&str>, ok: impl Fn(&str) -> bool, expected: &str) -> Result<(), HeadProblem> {
    if got.is_some_and(ok) { Ok(()) } else { Err(metadata_problem(key, got, expected.to_owned())) }
}

fn threshold(text: &str) -> Result<f64, HeadProblem> {
    let value = text.parse().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| metadata_problem("threshold", Some(text), "a number from 0 to 1".into()))
}

fn init_args(text: &str) -> Result<Value, HeadProblem> {
    serde_json::from_str(text).map_err(|error| metadata_problem("init_args", Some(text), format!("JSON ({error})")))
}

fn tensor(name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> Result<HeadTensor, HeadProblem> {
    let values = match dtype {
        Dtype::F32 => HeadValues::F32(data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
        Dtype::BF16 => HeadValues::Bf16(data.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes)).collect()),
        other => return Err(HeadProblem::Dtype { tensor: name.to_owned(), dtype: format!("{other:?}") }),
    };
    Ok(HeadTensor { shape: shape.to_vec(), values })
}

/// Says what is wrong with bytes that the safetensors reader refused.
fn broken(bytes: &[u8], error: &SafeTensorError) -> HeadProblem {
    let got = bytes.len() as u64;
    let header = bytes.first_chunk().map(|prefix| u64::from_le_bytes(*prefix));
    match (error, header) {
        (SafeTensorError::HeaderTooSmall, _) => HeadProblem::Truncated { got, expected: 8 },
        // The largest header that safetensors allows.
        (SafeTensorError::InvalidHeaderLength, Some(header)) if header <= 100_000_000 => {
            HeadProblem::Truncated { got, expected: header + 8 }
        }
        (SafeTensorError::MetadataIncompleteBuffer, Some(header)) => {
            let text = bytes.get(8..8 + header as usize).unwrap_or_default();
            let metadata = serde_json::from_slice::<safetensors::tensor::Metadata>(text);
            let data = metadata.map_or(0, |metadata| metadata.data_len() as u64);
            if 8 + header + data > got {
                HeadProblem::Truncated { got, expected: 8 + header + data }
            } else {
                HeadProblem::Safetensors(format!("{} bytes follow the last tensor", got - 8 - header - data))
            }
        }
        _ => HeadProblem::Safetensors(error.to_string()),
    }
}
