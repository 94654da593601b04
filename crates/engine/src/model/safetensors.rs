//! Tensors in one or more safetensors files, read one at a time. (Candle's lazy reader maps the files, which is
//! `unsafe`: another process may truncate them.)

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use safetensors::tensor::{Dtype, Metadata};
use tokenrouter_kernels::Format;

use super::shards::Shard;
use super::{ModelError, StoredTensor, stored};

/// Largest header accepted, in bytes.
const MAX_HEADER: u64 = 64 << 20;

struct Entry {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    offset: u64,
    length: usize,
}

/// An index over the tensors of several files.
pub(super) struct Shards {
    files: Vec<(PathBuf, Mutex<File>)>,
    entries: HashMap<String, Entry>,
}

impl Shards {
    pub(super) fn open(files: &[Shard]) -> Result<Self, ModelError> {
        let mut shards = Self { files: Vec::new(), entries: HashMap::new() };
        for file in files {
            shards.add(file)?;
        }
        Ok(shards)
    }

    fn add(&mut self, Shard { path, tensors }: &Shard) -> Result<(), ModelError> {
        let (file, metadata, data) = read_header(path)?;
        let wanted = |name: &str| tensors.as_ref().is_none_or(|tensors| tensors.contains(name));
        let found = metadata.tensors();
        for (name, info) in &found {
            if !wanted(name) {
                continue;
            }
            let (start, end) = info.data_offsets;
            let entry = Entry {
                file: self.files.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                offset: data + start as u64,
                length: end - start,
            };
            if let Some(other) = self.entries.insert(name.clone(), entry) {
                let other = self.files[other.file].0.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let message = format!("tensor `{name}` is also in `{other}`, and no index says which is meant");
                return Err(ModelError::invalid(path, message));
            }
        }
        if let Some(missing) = tensors.iter().flatten().find(|name| !found.contains_key(*name)) {
            let message = format!("tensor `{missing}` is missing, which the index says is in this file");
            return Err(ModelError::invalid(path, message));
        }
        self.files.push((path.clone(), Mutex::new(file)));
        Ok(())
    }

    /// Names of all tensors.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The type of a tensor that is there.
    pub(super) fn dtype(&self, name: &str) -> Option<Dtype> {
        self.entries.get(name).map(|entry| entry.dtype)
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// Whether two tensors that are there are the same, without having both in memory.
    pub(super) fn are_equal(&self, a: &str, b: &str) -> Result<bool, ModelError> {
        const CHUNK: usize = 1 << 20;
        let (Some(a), Some(b)) = (self.entries.get(a), self.entries.get(b)) else { return Ok(false) };
        if (a.dtype, &a.shape) != (b.dtype, &b.shape) {
            return Ok(false);
        }
        let mut buffers = [vec![0; CHUNK.min(a.length)], vec![0; CHUNK.min(a.length)]];
        for start in (0..a.length).step_by(CHUNK) {
            let count = CHUNK.min(a.length - start);
            for (entry, buffer) in [a, b].into_iter().zip(&mut buffers) {
                self.read(entry, start, &mut buffer[..count])?;
            }
            if buffers[0][..count] != buffers[1][..count] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read(&self, entry: &Entry, start: usize, out: &mut [u8]) -> Result<(), ModelError> {
        let (path, file) = &self.files[entry.file];
        let mut file: MutexGuard<'_, File> = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(entry.offset + start as u64))
            .and_then(|_| file.read_exact(out))
            .map_err(|error| ModelError::io(path, error))
    }

    /// The named tensor.
    pub(super) fn load(&self, name: &str) -> Result<Option<StoredTensor>, ModelError> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        let path = &self.files[entry.file].0;
        let format = match entry.dtype {
            Dtype::F32 => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::Bf16,
            other => return Err(ModelError::invalid(path, wrong_type(name, other))),
        };
        if stored::size(format, &entry.shape) != Ok(entry.length as u64) {
            let message = format!("tensor `{name}` has {} bytes and shape {:?}", entry.length, entry.shape);
            return Err(ModelError::invalid(path, message));
        }
        let mut bytes = vec![0; entry.length];
        self.read(entry, 0, &mut bytes)?;
        Ok(Some(StoredTensor::new(format, entry.shape.clone(), bytes)))
    }

    /// The named tensor of numbers of type U32.
    pub(super) fn load_u32(&self, name: &str) -> Result<Option<Vec<u32>>, ModelError> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        if entry.dtype != Dtype::U32 {
            let message = format!("tensor `{name}` has type {:?}, allowed is U32", entry.dtype);
            return Err(ModelError::invalid(&self.files[entry.file].0, message));
        }
        let mut bytes = vec![0; entry.length];
        self.read(entry, 0, &mut bytes)?;
        Ok(Some(bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()))
    }
}

/// The message about a type that is not read: of other types, the numbers alone do not say what they mean.
pub(super) fn wrong_type(name: &str, dtype: Dtype) -> String {
    format!("tensor `{name}` has type {dtype:?}, allowed are F32, F16 and BF16")
}

/// The file after its header, what that says, and where the data begins.
fn read_header(path: &Path) -> Result<(File, Metadata, u64), ModelError> {
    let io = |error| ModelError::io(path, error);
    let mut file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut prefix = [0u8; 8];
    file.read_exact(&mut prefix).map_err(io)?;
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER.min(size.saturating_sub(8)) {
        let message = format!("not a safetensors file: its header would be {header} bytes long, the file has {size}");
        return Err(ModelError::invalid(path, message));
    }
    let mut buffer = Vec::new();
    file.by_ref().take(header).read_to_end(&mut buffer).map_err(io)?;
    let metadata: Metadata = serde_json::from_slice(&buffer)
        .map_err(|error| ModelError::invalid(path, format!("safetensors header cannot be read: {error}")))?;
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        let last = (end as u64).checked_add(8 + header);
        if start > end || last.is_none_or(|last| last > size) {
            return Err(ModelError::invalid(path, format!("the file is truncated: tensor `{name}` ends after it")));
        }
    }
    Ok((file, metadata, 8 + header))
}
