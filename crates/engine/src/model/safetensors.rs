//! Tensors in one or more safetensors files, read one at a time. (Candle's lazy reader maps the files, which is
//! `unsafe`: another process may truncate them.)

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::Metadata;

use super::ModelError;

/// Largest header accepted, in bytes.
const MAX_HEADER: u64 = 64 << 20;

struct Entry {
    file: usize,
    dtype: DType,
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
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self, ModelError> {
        let mut shards = Self { files: Vec::new(), entries: HashMap::new() };
        for path in paths {
            shards.add(path)?;
        }
        Ok(shards)
    }

    fn add(&mut self, path: &Path) -> Result<(), ModelError> {
        let io = |error| ModelError::io(path, error);
        let mut file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut prefix = [0u8; 8];
        file.read_exact(&mut prefix).map_err(io)?;
        let header = u64::from_le_bytes(prefix);
        if header > MAX_HEADER.min(size.saturating_sub(8)) {
            let message =
                format!("not a safetensors file: its header would be {header} bytes long, the file has {size}");
            return Err(ModelError::invalid(path, message));
        }
        let mut buffer = Vec::new();
        file.by_ref().take(header).read_to_end(&mut buffer).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&buffer)
            .map_err(|error| ModelError::invalid(path, format!("safetensors header cannot be read: {error}")))?;
        for (name, info) in metadata.tensors() {
            let dtype = DType::try_from(info.dtype)
                .map_err(|error| ModelError::invalid(path, format!("tensor `{name}`: {error}")))?;
            let (start, end) = info.data_offsets;
            let last = (end as u64).checked_add(8 + header);
            if start > end || last.is_none_or(|last| last > size) {
                return Err(ModelError::invalid(path, format!("the file is truncated: tensor `{name}` ends after it")));
            }
            let entry = Entry {
                file: self.files.len(),
                dtype,
                shape: info.shape.clone(),
                offset: 8 + header + start as u64,
                length: end - start,
            };
            self.entries.insert(name.clone(), entry);
        }
        self.files.push((path.to_owned(), Mutex::new(file)));
        Ok(())
    }

    /// Names of all tensors.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The named tensor on the CPU.
    pub(super) fn load(&self, name: &str) -> Result<Option<Tensor>, ModelError> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        let (path, file) = &self.files[entry.file];
        let mut bytes = vec![0; entry.length];
        let mut file = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(entry.offset))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|error| ModelError::io(path, error))?;
        let tensor = Tensor::from_raw_buffer(&bytes, entry.dtype, &entry.shape, &Device::Cpu);
        tensor.map(Some).map_err(|error| ModelError::invalid(path, format!("tensor `{name}` cannot be read: {error}")))
    }
}
