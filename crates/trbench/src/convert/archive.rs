//! The zip archives of `torch.save`: a pickle, and the elements of its tensors beside it.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use half::{bf16, f16};
use tokenrouter_engine::heads::{HeadTensor, HeadValues};
use zip::{CompressionMethod, ZipArchive};

use super::pickle::{Element, MAX_PICKLE, Pickle, TensorRef};

/// Most elements of a tensor that is converted: several times the largest of any head.
const MAX_ELEMENTS: usize = 1 << 30;

/// A checkpoint whose tensors are read on demand.
pub struct Checkpoint {
    zip: ZipArchive<File>,
    /// Folder of the archive that everything is in.
    prefix: String,
    /// The data.
    pub pickle: Pickle,
}

impl Checkpoint {
    /// Opens a file of `torch.save`. Only the pickle is read.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let mut file = File::open(path)?;
        let mut magic = [0; 4];
        let length = file.read(&mut magic)?;
        ensure!(
            magic[..length] == *b"PK\x03\x04",
            "it is neither a safetensors file nor a zip archive as `torch.save` writes since torch 1.6; load it with \
             torch and save it again, if you trust it"
        );
        file.rewind()?;
        let mut zip = ZipArchive::new(file).context("the zip archive cannot be read")?;
        let names: Vec<String> =
            zip.file_names().map(|name| name.map(std::borrow::Cow::into_owned)).collect::<Result<_, _>>()?;
        let mut prefixes = names.iter().filter_map(|name| name.strip_suffix("data.pkl"));
        let prefix = match (prefixes.next(), prefixes.next()) {
            (Some(prefix), None) => prefix.to_owned(),
            _ => bail!("the zip archive must hold exactly one `data.pkl`, as `torch.save` writes it"),
        };
        let order = format!("{prefix}byteorder");
        if names.contains(&order) {
            ensure!(entry(&mut zip, &order, 16)? == b"little", "its tensors are not little-endian");
        }
        let bytes = entry(&mut zip, &format!("{prefix}data.pkl"), MAX_PICKLE)?;
        Ok(Self { pickle: Pickle::parse(&bytes)?, prefix, zip })
    }

    /// Reads a tensor, in row-major order: brain floats as they are, other floats in single precision.
    pub fn tensor(&mut self, name: &str, tensor: &TensorRef) -> anyhow::Result<HeadTensor> {
        self.values(tensor).with_context(|| format!("tensor `{name}`"))
    }

    fn values(&mut self, tensor: &TensorRef) -> anyhow::Result<HeadTensor> {
        let TensorRef { storage, shape, .. } = tensor;
        let name = format!("{}data/{}", self.prefix, storage.key);
        ensure!(storage.count <= MAX_ELEMENTS, "it has {} elements, at most {MAX_ELEMENTS} are read", storage.count);
        let expected = storage.count * storage.element.bytes();
        let bytes = entry(&mut self.zip, &name, expected)?;
        ensure!(bytes.len() == expected, "`{name}` has {} bytes, expected {expected}", bytes.len());
        let values = match storage.element {
            Element::F32 => HeadValues::F32(gather(tensor, &bytes, f32::from_le_bytes)),
            Element::F64 => HeadValues::F32(gather(tensor, &bytes, |bytes| f64::from_le_bytes(bytes) as f32)),
            Element::F16 => HeadValues::F32(gather(tensor, &bytes, |bytes| f16::from_le_bytes(bytes).to_f32())),
            Element::Bf16 => HeadValues::Bf16(gather(tensor, &bytes, bf16::from_le_bytes)),
            other => bail!("its elements are {other:?}, expected floating-point numbers"),
        };
        Ok(HeadTensor { shape: shape.clone(), values })
    }
}

/// The elements of a view of a storage, in row-major order. The view is inside of the storage: the pickle's reader made
/// sure.
fn gather<const N: usize, T>(tensor: &TensorRef, bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (elements, _) = bytes.as_chunks::<N>();
    let count = tensor.shape.iter().product();
    let mut index = vec![0; tensor.shape.len()];
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        let distance: usize = index.iter().zip(&tensor.stride).map(|(index, stride)| index * stride).sum();
        values.push(convert(elements[tensor.offset + distance]));
        // Counts like an odometer: the last dimension fastest.
        for (index, size) in index.iter_mut().zip(&tensor.shape).rev() {
            *index += 1;
            if *index < *size {
                break;
            }
            *index = 0;
        }
    }
    values
}

/// The contents of an entry of at most `most` bytes.
fn entry(zip: &mut ZipArchive<File>, name: &str, most: usize) -> anyhow::Result<Vec<u8>> {
    let entry = zip.by_name(name).with_context(|| format!("entry `{name}` of the archive"))?;
    // What is not compressed is no larger than the file.
    ensure!(entry.compression() == CompressionMethod::Stored, "entry `{name}` is compressed, torch writes it plain");
    ensure!(entry.size() <= most as u64, "entry `{name}` has {} bytes, expected at most {most}", entry.size());
    let mut bytes = Vec::new();
    entry.take(most as u64).read_to_end(&mut bytes).with_context(|| format!("entry `{name}` of the archive"))?;
    Ok(bytes)
}
