//! One row of an output matrix, out of a whole model's checkpoint.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Value, json};
use tokenrouter_engine::heads::{HeadTensor, HeadValues};

use super::archive::Checkpoint;
use super::pickle::TensorRef;

/// The output matrix.
pub(super) const WEIGHT: &str = "lm_head.weight";
const BIAS: &str = "lm_head.bias";
/// Largest safetensors header accepted, in bytes.
const MAX_HEADER: u64 = 64 << 20;

type Tensors = BTreeMap<String, HeadTensor>;

/// Row `wanted`, or the last one, of `rows`.
fn choose(wanted: Option<usize>, rows: usize) -> anyhow::Result<usize> {
    let row = wanted.or(rows.checked_sub(1)).context("the output matrix has no rows")?;
    ensure!(row < rows, "row {row} of `{WEIGHT}` is wanted, it has rows 0 to {}", rows.saturating_sub(1));
    Ok(row)
}

fn about(row: usize, rows: usize) -> Value {
    json!({"row": row, "rows": rows})
}

/// From a model's `.bin` file.
pub(super) fn from_pickle(checkpoint: &mut Checkpoint, wanted: Option<usize>) -> anyhow::Result<(Tensors, Value)> {
    let root = checkpoint.pickle.root();
    let find = |name: &str| root.get(name).and_then(super::Object::tensor).cloned();
    let matrix = find(WEIGHT).with_context(|| missing(""))?;
    let [rows, columns] = matrix.shape[..] else {
        bail!("`{WEIGHT}` has shape {:?}, expected 2 dimensions", matrix.shape)
    };
    let row = choose(wanted, rows)?;
    let bias = find(BIAS);
    let part = |tensor: &TensorRef, shape: &[usize], stride: &[usize]| TensorRef {
        storage: tensor.storage.clone(),
        offset: tensor.offset + row * tensor.stride[0],
        shape: shape.to_vec(),
        stride: stride.to_vec(),
    };
    let weight = part(&matrix, &[1, columns], &matrix.stride);
    let mut tensors = Tensors::from([(WEIGHT.to_owned(), checkpoint.tensor(WEIGHT, &weight)?)]);
    if let Some(bias) = bias {
        ensure!(bias.shape == [rows], "`{BIAS}` has shape {:?}, expected [{rows}]", bias.shape);
        let value = part(&bias, &[1], &bias.stride);
        tensors.insert(BIAS.to_owned(), checkpoint.tensor(BIAS, &value)?);
    }
    Ok((tensors, about(row, rows)))
}

/// From a model's safetensors file, of which only that row is read.
pub(super) fn from_safetensors(path: &Path, wanted: Option<usize>) -> anyhow::Result<(Tensors, Value)> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).context("it is no safetensors file: it has fewer than 8 bytes")?;
    let header = u64::from_le_bytes(prefix);
    ensure!(
        header <= MAX_HEADER.min(size - 8),
        "it is no safetensors file: its header would be {header} bytes long, the file has {size}"
    );
    let mut text = Vec::new();
    file.by_ref().take(header).read_to_end(&mut text)?;
    let metadata: Metadata = serde_json::from_slice(&text).context("its safetensors header cannot be read")?;
    let start = 8 + header;
    ensure!(
        metadata.data_len() as u64 == size - start,
        "its tensors have {} bytes, its header says {}",
        size - start,
        metadata.data_len()
    );
    let Some(matrix) = metadata.info(WEIGHT) else {
        bail!(missing(": where a model has several files, give the one that its index names for it"))
    };
    let [rows, columns] = matrix.shape[..] else {
        bail!("`{WEIGHT}` has shape {:?}, expected 2 dimensions", matrix.shape)
    };
    let row = choose(wanted, rows)?;
    let mut read = |info: &TensorInfo, count: usize| values(&mut file, start, info, row * count, count);
    let weight = HeadTensor { shape: vec![1, columns], values: read(matrix, columns).context(WEIGHT)? };
    let mut tensors = Tensors::from([(WEIGHT.to_owned(), weight)]);
    if let Some(bias) = metadata.info(BIAS) {
        ensure!(bias.shape == [rows], "`{BIAS}` has shape {:?}, expected [{rows}]", bias.shape);
        let bias = HeadTensor { shape: vec![1], values: read(bias, 1).context(BIAS)? };
        tensors.insert(BIAS.to_owned(), bias);
    }
    Ok((tensors, about(row, rows)))
}

fn missing(hint: &str) -> String {
    format!(
        "it has no `{WEIGHT}`{hint}; a checkpoint that ties it to the embedding has no row of its own for deferring"
    )
}

/// `count` elements from element `first` on. The header's reader checked that the tensor has the bytes of its shape.
fn values(file: &mut File, start: u64, info: &TensorInfo, first: usize, count: usize) -> anyhow::Result<HeadValues> {
    let width = match info.dtype {
        Dtype::F32 => 4,
        Dtype::F16 | Dtype::BF16 => 2,
        other => bail!("its elements are {other:?}, expected F32, F16 or BF16"),
    };
    let mut bytes = vec![0; count * width];
    file.seek(SeekFrom::Start(start + (info.data_offsets.0 + first * width) as u64))?;
    file.read_exact(&mut bytes)?;
    Ok(match info.dtype {
        Dtype::F32 => HeadValues::F32(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
        Dtype::F16 => {
            HeadValues::F32(bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect())
        }
        _ => HeadValues::Bf16(bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes)).collect()),
    })
}
