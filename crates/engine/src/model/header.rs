//! The header of a GGUF file: metadata, and where the tensors are.
//!
//! (Candle's reader knows fewer formats of tensors. Metadata are its type `Value`, in which its writer takes them.)

use std::collections::HashMap;
use std::io::{self, Read};

use candle_core::quantized::gguf_file::Value;
use tokenrouter_kernels::Format;

use super::stored;

/// Arrays may be nested this deep.
const MAX_DEPTH: usize = 8;
/// As in ggml.
const MAX_DIMS: u32 = 4;

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorInfo {
    pub(super) format: Format,
    /// Rows first, unlike in the file.
    pub(super) dims: Vec<usize>,
    /// From the start of the file.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Header {
    pub(super) values: HashMap<String, Value>,
    pub(super) tensors: HashMap<String, TensorInfo>,
}

/// Reads the header of a file of `length` bytes. Nothing larger than the file is allocated.
pub(super) fn read(source: impl Read, length: u64) -> Result<Header, String> {
    let mut reader = Reader { source, length, left: length, wide: true };
    let magic: [u8; 4] = reader.array().map_err(|_| "not a GGUF file: shorter than 4 bytes")?;
    if &magic != b"GGUF" {
        return Err(format!("not a GGUF file: it starts with {magic:?}, not with `GGUF`"));
    }
    read_after_magic(&mut reader).map_err(|error| format!("GGUF header cannot be read: {error}"))
}

fn read_after_magic(reader: &mut Reader<impl Read>) -> Result<Header, String> {
    match reader.u32()? {
        1 => reader.wide = false,
        2 | 3 => {}
        version => return Err(format!("version {version} is not supported, allowed are 1 to 3")),
    }
    let (tensor_count, value_count) = (reader.size()?, reader.size()?);
    let mut values = HashMap::new();
    for _ in 0..value_count {
        let key = reader.string()?;
        let kind = reader.u32()?;
        let value = reader.value(kind, 0).map_err(|error| format!("metadata key `{key}`: {error}"))?;
        values.insert(key, value);
    }
    let mut infos = Vec::new();
    for _ in 0..tensor_count {
        let name = reader.string()?;
        infos.push(reader.tensor().map(|info| (name.clone(), info)).map_err(|e| format!("tensor `{name}` {e}"))?);
    }
    let alignment = match values.get("general.alignment") {
        None => 32,
        Some(value) => match value.to_u64() {
            Ok(alignment) if alignment > 0 => alignment,
            _ => return Err(format!("`general.alignment` is {value:?}, allowed are numbers above 0")),
        },
    };
    let end = reader.length - reader.left;
    let data = end.checked_next_multiple_of(alignment).ok_or("`general.alignment` is too large")?;
    let mut tensors = HashMap::new();
    for (name, mut info) in infos {
        info.offset = info.offset.checked_add(data).ok_or_else(|| format!("tensor `{name}` has no valid place"))?;
        if tensors.insert(name.clone(), info).is_some() {
            return Err(format!("tensor `{name}` is there twice"));
        }
    }
    Ok(Header { values, tensors })
}

struct Reader<R> {
    source: R,
    length: u64,
    /// Bytes of the file that are still to come.
    left: u64,
    /// Whether sizes have 64 bits, as from version 2 on.
    wide: bool,
}

impl<R: Read> Reader<R> {
    fn fill(&mut self, out: &mut [u8]) -> Result<(), String> {
        self.take(out.len() as u64)?;
        self.source.read_exact(out).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "the file ends too early".to_owned(),
            _ => error.to_string(),
        })
    }

    /// Counts bytes that are about to be read.
    fn take(&mut self, bytes: u64) -> Result<(), String> {
        let too_many = || format!("{bytes} more bytes do not fit into the file's {}", self.length);
        self.left = self.left.checked_sub(bytes).ok_or_else(too_many)?;
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.fill(&mut bytes).map(|()| bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    /// A length or a number of things.
    fn size(&mut self) -> Result<u64, String> {
        if self.wide { self.array().map(u64::from_le_bytes) } else { self.u32().map(u64::from) }
    }

    fn string(&mut self) -> Result<String, String> {
        let length = self.size()?;
        if length > self.left {
            return Err(format!("a string of {length} bytes does not fit into the file's {}", self.length));
        }
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        // Some writers end strings with zeros, and some cut characters.
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::U8(self.array::<1>()?[0]),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => match self.array::<1>()?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => return Err(format!("a truth value is {other}, allowed are 0 and 1")),
            },
            8 => Value::String(self.string()?),
            9 if depth < MAX_DEPTH => {
                let (kind, count) = (self.u32()?, self.size()?);
                // Every element has at least a byte.
                if count > self.left {
                    return Err(format!("an array of {count} does not fit into the file's {} bytes", self.length));
                }
                Value::Array((0..count).map(|_| self.value(kind, depth + 1)).collect::<Result<_, _>>()?)
            }
            9 => return Err(format!("arrays are nested more than {MAX_DEPTH} deep")),
            10 => Value::U64(u64::from_le_bytes(self.array()?)),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("type {other} is not known, allowed are 0 to 12")),
        })
    }

    fn tensor(&mut self) -> Result<TensorInfo, String> {
        let rank = self.u32()?;
        if rank > MAX_DIMS {
            return Err(format!("has {rank} dimensions, allowed are {MAX_DIMS}"));
        }
        let mut dims = Vec::new();
        for _ in 0..rank {
            let dim = self.size()?;
            dims.push(usize::try_from(dim).map_err(|_| format!("has a dimension of {dim}"))?);
        }
        dims.reverse();
        let number = self.u32()?;
        let format = Format::from_ggml(number).ok_or_else(|| {
            format!(
                "has the type with number {number} in ggml, allowed are {}",
                Format::ALL.map(Format::name).join(", ")
            )
        })?;
        let offset = u64::from_le_bytes(self.array()?);
        let bytes = stored::size(format, &dims)?;
        Ok(TensorInfo { format, dims, offset, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::quantized::gguf_file::{Content, write};
    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{Device, Tensor};

    /// A file as candle writes it.
    fn file() -> Vec<u8> {
        let values = [
            ("a.u8", Value::U8(7)),
            ("a.i16", Value::I16(-3)),
            ("a.u64", Value::U64(1 << 40)),
            ("a.f32", Value::F32(0.25)),
            ("a.f64", Value::F64(1e-300)),
            ("a.bool", Value::Bool(true)),
            ("a.text", Value::String("words".into())),
            ("a.list", Value::Array(vec![Value::String("x".into()), Value::String(String::new())])),
            ("a.lists", Value::Array(vec![Value::Array(vec![Value::I32(1), Value::I32(-1)]), Value::Array(vec![])])),
        ];
        let matrix = Tensor::arange(0f32, 512.0, &Device::Cpu).and_then(|t| t.reshape((2, 256))).expect("a tensor");
        let tensors = [("m", GgmlDType::Q6K), ("n", GgmlDType::F16), ("o", GgmlDType::Q5_1)]
            .map(|(name, dtype)| (name, QTensor::quantize(&matrix, dtype).expect("quantised")));
        let mut out = io::Cursor::new(Vec::new());
        write(
            &mut out,
            &values.each_ref().map(|(key, value)| (*key, value)),
            &tensors.each_ref().map(|(n, t)| (*n, t)),
        )
        .expect("written");
        out.into_inner()
    }

    /// Candle reads the same.
    #[test]
    fn headers_are_read_as_candle_reads_them() {
        let bytes = file();
        let header = read(&bytes[..], bytes.len() as u64).expect("a header");
        let content = Content::read(&mut io::Cursor::new(&bytes)).expect("a header");
        let sorted = |values: &HashMap<String, Value>| {
            let mut values: Vec<_> = values.iter().map(|(key, value)| format!("{key}: {value:?}")).collect();
            values.sort();
            values
        };
        assert_eq!(sorted(&header.values), sorted(&content.metadata));
        assert_eq!(header.tensors.len(), 3);
        for (name, info) in &header.tensors {
            let other = &content.tensor_infos[name];
            assert_eq!(info.dims, other.shape.dims());
            assert_eq!(info.offset, content.tensor_data_offset + other.offset);
            assert_eq!(info.bytes as usize, 512 / other.ggml_dtype.block_size() * other.ggml_dtype.type_size());
        }
        assert_eq!(header.tensors["m"].format, Format::Q6K);
    }

    #[test]
    fn whatever_the_bytes_are_the_result_is_a_header_or_a_reason() {
        let good = file();
        let end = good.len() - 512 * 3;
        for cut in 0..end {
            let bytes = &good[..cut];
            let _header_or_reason = read(bytes, cut as u64);
            for change in [0, 1, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[cut] = change;
                let _header_or_reason = read(&bytes[..], bytes.len() as u64);
            }
        }
        assert!(read(&good[..40], 40).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let header = |tensor: &[u8]| {
            let mut bytes = b"GGUF".to_vec();
            bytes.extend(3u32.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
            bytes.extend(0u64.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
            bytes.push(b't');
            bytes.extend(tensor);
            read(&bytes[..], bytes.len() as u64).map(|header| header.tensors["t"].clone())
        };
        let tensor = |dims: &[u64], format: u32| {
            let mut bytes = (dims.len() as u32).to_le_bytes().to_vec();
            dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
            bytes.extend(format.to_le_bytes());
            bytes.extend(64u64.to_le_bytes());
            header(&bytes)
        };
        let good = TensorInfo { format: Format::Iq4Xs, dims: vec![3, 256], offset: 96 + 64, bytes: 3 * 136 };
        assert_eq!(tensor(&[256, 3], 23), Ok(good));
        for (dims, format, wanted) in [
            (&[300, 3][..], 12, "tensor `t` has rows of 300 numbers, Q4_K allows multiples of 256"),
            (&[256, 3], 24, "tensor `t` has the type with number 24 in ggml, allowed are F32, F16"),
            (&[1 << 40, 1 << 40], 0, "tensor `t` has too many numbers"),
            (&[1, 1, 1, 1, 1], 0, "tensor `t` has 5 dimensions, allowed are 4"),
        ] {
            let message = tensor(dims, format).expect_err("refused");
            assert!(message.contains(wanted), "{message}");
        }
    }
}
