//! A GGUF model in one file or in several, as `gguf-split` writes them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use candle_core::quantized::gguf_file::Value;

use super::header::{self, Header};
use super::{ModelError, StoredTensor};
use crate::files::GgufMetadata;

struct Part {
    path: PathBuf,
    header: Header,
    file: Mutex<File>,
}

/// The files of a model. The first has the metadata.
pub(super) struct Parts {
    parts: Vec<Part>,
    /// Which part has a tensor.
    places: HashMap<String, usize>,
}

impl Parts {
    /// Opens the file at `path`, and all others of its model.
    pub(super) fn open(path: &Path) -> Result<Self, ModelError> {
        let part = Part::open(path)?;
        let metadata = part.metadata();
        let parts = match metadata.optional_usize("split.count")?.unwrap_or(1) {
            0 | 1 => vec![part],
            count => Self::open_all(path, part, count)?,
        };
        let mut places = HashMap::new();
        for (index, part) in parts.iter().enumerate() {
            for name in part.header.tensors.keys() {
                if let Some(other) = places.insert(name.clone(), index) {
                    let message = format!("tensor `{name}` is also in `{}`", parts[other].path.display());
                    return Err(ModelError::invalid(&part.path, message));
                }
            }
        }
        let parts = Self { parts, places };
        let metadata = parts.metadata();
        match metadata.optional_usize("split.tensors.count")? {
            Some(count) if parts.parts.len() > 1 && count != parts.places.len() => {
                let have = parts.places.len();
                Err(metadata.invalid(format!("`split.tensors.count` is {count}, the files have {have} tensors")))
            }
            _ => Ok(parts),
        }
    }

    /// `part` is one of them, whichever it is.
    fn open_all(path: &Path, part: Part, count: usize) -> Result<Vec<Part>, ModelError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let suffix = format!("-of-{count:05}.gguf");
        let start = name.strip_suffix(&suffix).and_then(|rest| rest.rsplit_once('-')).map(|(start, _)| start);
        let Some(start) = start else {
            let message = format!(
                "`split.count` is {count}, so files are called `NAME-00001{suffix}` and so on, but this one is called `{name}`"
            );
            return Err(ModelError::invalid(path, message));
        };
        let paths = (1..=count).map(|number| path.with_file_name(format!("{start}-{number:05}{suffix}")));
        let mut given = Some(part);
        let mut parts = Vec::new();
        for (index, other) in paths.enumerate() {
            let part = match given.take_if(|_| other == path) {
                Some(part) => part,
                None if other.is_file() => Part::open(&other)?,
                None => {
                    let file = other.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    let message = format!("part {} of {count} is missing: no file `{file}` in this folder", index + 1);
                    return Err(ModelError::invalid(path, message));
                }
            };
            for (key, want) in [("split.count", count), ("split.no", index)] {
                let have = part.metadata().usize(key)?;
                if have != want {
                    return Err(ModelError::invalid(
                        &part.path,
                        format!("`{key}` is {have}, by its name it is {want}"),
                    ));
                }
            }
            parts.push(part);
        }
        Ok(parts)
    }

    pub(super) fn metadata(&self) -> GgufMetadata<'_> {
        self.parts[0].metadata()
    }

    /// All metadata, of the first file.
    pub(super) fn values(&self) -> &HashMap<String, Value> {
        &self.parts[0].header.values
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    pub(super) fn dims(&self, name: &str) -> Option<&[usize]> {
        let part = &self.parts[*self.places.get(name)?];
        part.header.tensors.get(name).map(|info| info.dims.as_slice())
    }

    /// A tensor, if there is one of this name.
    pub(super) fn tensor(&self, name: &str) -> Result<Option<StoredTensor>, ModelError> {
        let Some(index) = self.places.get(name) else { return Ok(None) };
        let Part { path, header, file } = &self.parts[*index];
        let Some(info) = header.tensors.get(name) else { return Ok(None) };
        let mut file = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The file had room for it when it was opened.
        let mut bytes = vec![0; info.bytes as usize];
        let read = file.seek(SeekFrom::Start(info.offset)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|error| ModelError::invalid(path, format!("tensor `{name}` cannot be read: {error}")))?;
        Ok(Some(StoredTensor::new(info.format, info.dims.clone(), bytes)))
    }
}

impl Part {
    fn open(path: &Path) -> Result<Self, ModelError> {
        let file = File::open(path).map_err(|error| ModelError::io(path, error))?;
        let mut reader = BufReader::new(file);
        let length = std::fs::metadata(path).map_err(|error| ModelError::io(path, error))?.len();
        let header = header::read(&mut reader, length).map_err(|error| ModelError::invalid(path, error))?;
        check_extent(path, length, &header)?;
        Ok(Self { path: path.to_owned(), header, file: Mutex::new(reader.into_inner()) })
    }

    fn metadata(&self) -> GgufMetadata<'_> {
        GgufMetadata { path: &self.path, values: &self.header.values }
    }
}

/// Refuses a truncated file before anything is allocated for its tensors.
fn check_extent(path: &Path, length: u64, header: &Header) -> Result<(), ModelError> {
    for (name, info) in &header.tensors {
        if info.offset.checked_add(info.bytes).is_none_or(|end| end > length) {
            return Err(ModelError::invalid(
                path,
                format!("the file is truncated or corrupt: tensor `{name}` ends after the file's {length} bytes"),
            ));
        }
    }
    Ok(())
}
