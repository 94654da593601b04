//! A tensor as a file holds it.

use candle_core::quantized::GgmlDType;
use half::{bf16, f16};
use tokenrouter_kernels::{Format, PackedMatrix};

/// The dimensions, the format and the bytes of a tensor.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    format: Format,
    dims: Vec<usize>,
    bytes: Vec<u8>,
}

impl StoredTensor {
    /// `bytes` are as many as `dims` in `format` need, which readers of headers check.
    pub(super) fn new(format: Format, dims: Vec<usize>, bytes: Vec<u8>) -> Self {
        Self { format, dims, bytes }
    }

    /// How its weights are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Its dimensions, rows first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The bytes of the file, row by row.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Some rows of a matrix. All are below its number of rows.
    pub fn rows(&self, rows: &[u32]) -> Self {
        let size = self.bytes.len() / self.dims[0].max(1);
        let bytes = rows.iter().flat_map(|row| &self.bytes[*row as usize * size..][..size]).copied().collect();
        let dims = std::iter::once(rows.len()).chain(self.dims[1..].iter().copied()).collect();
        Self { format: self.format, dims, bytes }
    }

    /// Row-major `f32` values.
    pub fn to_f32(&self) -> Result<Vec<f32>, tokenrouter_kernels::Error> {
        let pairs = || self.bytes.as_chunks::<2>().0.iter();
        Ok(match self.format {
            Format::F32 => self.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            Format::F16 => pairs().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
            Format::Bf16 => pairs().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
            format => {
                let k = self.dims.last().copied().unwrap_or(1);
                let n = self.dims.iter().rev().skip(1).product();
                let matrix = PackedMatrix::from_blocks(format, n, k, &self.bytes)?;
                let mut values = vec![0.0; n * k];
                values.chunks_exact_mut(k).enumerate().for_each(|(row, out)| matrix.row(row, out));
                values
            }
        })
    }
}

/// Candle's name of a format, if it has one.
pub fn candle_dtype(format: Format) -> Option<GgmlDType> {
    Some(match format {
        Format::F32 => GgmlDType::F32,
        Format::F16 => GgmlDType::F16,
        Format::Bf16 => GgmlDType::BF16,
        Format::Q4_0 => GgmlDType::Q4_0,
        Format::Q4_1 => GgmlDType::Q4_1,
        Format::Q5_0 => GgmlDType::Q5_0,
        Format::Q5_1 => GgmlDType::Q5_1,
        Format::Q8_0 => GgmlDType::Q8_0,
        Format::Q2K => GgmlDType::Q2K,
        Format::Q3K => GgmlDType::Q3K,
        Format::Q4K => GgmlDType::Q4K,
        Format::Q5K => GgmlDType::Q5K,
        Format::Q6K => GgmlDType::Q6K,
        Format::Iq4Nl | Format::Iq4Xs | Format::Mxfp4 => return None,
    })
}

/// Bytes of a tensor, or why there can be none: rows are whole numbers of blocks. `dims` are rows first.
pub(super) fn size(format: Format, dims: &[usize]) -> Result<u64, String> {
    let columns = dims.last().copied().unwrap_or(1);
    if !columns.is_multiple_of(format.columns()) {
        let block = format.columns();
        return Err(format!("has rows of {columns} numbers, {format} allows multiples of {block}"));
    }
    let count = dims.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim as u64));
    let bytes = count.and_then(|count| (count / format.columns() as u64).checked_mul(format.bytes() as u64));
    bytes.ok_or_else(|| format!("has too many numbers: {dims:?}"))
}
