//! Weights, as kernels read them.

use half::{bf16, f16};

use super::memory::{Buffer, Device};
use crate::{Error, Format, check};

/// Weights or activations of a quantised matrix share a scale in blocks of this many.
const BLOCK: usize = 32;

/// How the numbers of a matrix are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixKind {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 8 bits and a scale per 32 (Q8_0).
    Q8,
    /// 4 bits, a scale and an offset per 32 (Q4_0, Q4_1).
    Q4,
}

impl MatrixKind {
    /// Its kernels for embeddings and for products with f32 activations.
    pub(super) fn kernels(self) -> [&'static str; 2] {
        match self {
            Self::F32 => ["embed_f32", "gemm_f32"],
            Self::F16 => ["embed_f16", "gemm_f16"],
            Self::Bf16 => ["embed_bf16", "gemm_bf16"],
            Self::Q8 => ["embed_q8", "gemm_q8"],
            Self::Q4 => ["embed_q4", "gemm_q4"],
        }
    }

    /// Bytes of values and of scales of `count` weights.
    fn bytes(self, count: usize) -> (usize, usize) {
        match self {
            Self::F32 => (4 * count, 0),
            Self::F16 | Self::Bf16 => (2 * count, 0),
            Self::Q8 => (count, count / BLOCK * 2),
            Self::Q4 => (count / 2, count / BLOCK * 4),
        }
    }

    /// Columns are cut in multiples of this.
    fn unit(self) -> usize {
        if matches!(self, Self::Q8 | Self::Q4) { BLOCK } else { 8 }
    }
}

/// A matrix `[n, k]` on the host, by rows, in the form that kernels read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostMatrix {
    kind: MatrixKind,
    n: usize,
    k: usize,
    values: Vec<u8>,
    scales: Vec<u8>,
}

impl HostMatrix {
    /// From `[n, k]` floats; `kind` is one of the float kinds.
    pub fn from_f32(kind: MatrixKind, n: usize, k: usize, weights: &[f32]) -> Result<Self, Error> {
        check("weights of a matrix", weights.len(), weights.len() == n * k, n * k)?;
        check("columns of a matrix", k, k.is_multiple_of(8), "a multiple of 8")?;
        let values = match kind {
            MatrixKind::F32 => weights.iter().flat_map(|x| x.to_le_bytes()).collect(),
            MatrixKind::F16 => weights.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            MatrixKind::Bf16 => weights.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            MatrixKind::Q8 | MatrixKind::Q4 => {
                return Err(super::driver::failed("matrix", "quantised matrices are made from blocks"));
            }
        };
        Ok(Self { kind, n, k, values, scales: Vec::new() })
    }

    /// From the bits of `[n, k]` numbers of 16 bits; `kind` is `F16` or `Bf16`.
    pub fn from_bits(
        kind: MatrixKind,
        n: usize,
        k: usize,
        bits: impl ExactSizeIterator<Item = u16>,
    ) -> Result<Self, Error> {
        check("weights of a matrix", bits.len(), bits.len() == n * k, n * k)?;
        check("columns of a matrix", k, k.is_multiple_of(8), "a multiple of 8")?;
        if !matches!(kind, MatrixKind::F16 | MatrixKind::Bf16) {
            return Err(super::driver::failed("matrix", "only F16 and Bf16 have 16 bits"));
        }
        Ok(Self { kind, n, k, values: bits.flat_map(u16::to_le_bytes).collect(), scales: Vec::new() })
    }

    /// From the blocks of a GGUF file, of Q4_0, Q4_1 or Q8_0.
    pub fn from_blocks(format: Format, n: usize, k: usize, blocks: &[u8]) -> Result<Self, Error> {
        let to = match format {
            Format::Q8_0 => MatrixKind::Q8,
            Format::Q4_0 | Format::Q4_1 => MatrixKind::Q4,
            _ => return Err(super::driver::failed("matrix", format!("{format} has no CUDA kernels"))),
        };
        check("columns of a quantised matrix", k, k.is_multiple_of(BLOCK), "a multiple of 32")?;
        let expected = n * k / BLOCK * format.bytes();
        check("bytes of a quantised matrix", blocks.len(), blocks.len() == expected, expected)?;
        let (value_bytes, scale_bytes) = to.bytes(n * k);
        let (mut values, mut scales) = (Vec::with_capacity(value_bytes), Vec::with_capacity(scale_bytes));
        for block in blocks.chunks_exact(format.bytes()) {
            let scale = [block[0], block[1]];
            scales.extend(scale);
            match format {
                Format::Q8_0 => values.extend(&block[2..]),
                Format::Q4_0 => {
                    // Exact: a power of two times a half, unless it leaves their range.
                    let offset = f16::from_f32(-8.0 * f16::from_le_bytes(scale).to_f32());
                    scales.extend(offset.to_le_bytes());
                    values.extend(neighbours(&block[2..]));
                }
                _ => {
                    scales.extend(&block[2..4]);
                    values.extend(neighbours(&block[4..]));
                }
            }
        }
        Ok(Self { kind: to, n, k, values, scales })
    }

    /// Rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns.
    pub fn k(&self) -> usize {
        self.k
    }

    /// How it is stored.
    pub fn kind(&self) -> MatrixKind {
        self.kind
    }

    /// The `part`-th of `parts` bands of rows: what a rank of a column-parallel layer holds.
    pub fn rows(&self, part: usize, parts: usize) -> Result<Self, Error> {
        check("rows of a matrix", self.n, self.n.is_multiple_of(parts), format_args!("a multiple of {parts}"))?;
        let band = |bytes: &[u8]| bytes[bytes.len() / parts * part..bytes.len() / parts * (part + 1)].to_vec();
        Ok(Self { n: self.n / parts, values: band(&self.values), scales: band(&self.scales), ..*self })
    }

    /// The `part`-th of `parts` bands of columns: what a rank of a row-parallel layer holds.
    pub fn columns(&self, part: usize, parts: usize) -> Result<Self, Error> {
        let unit = parts * self.kind.unit();
        check("columns of a matrix", self.k, self.k.is_multiple_of(unit), format_args!("a multiple of {unit}"))?;
        let band = |bytes: &[u8]| -> Vec<u8> {
            let width = bytes.len() / self.n.max(1);
            let rows = bytes.chunks_exact(width.max(1));
            rows.flat_map(|row| &row[width / parts * part..width / parts * (part + 1)]).copied().collect()
        };
        Ok(Self { k: self.k / parts, values: band(&self.values), scales: band(&self.scales), ..*self })
    }

    /// All weights as floats, by rows.
    pub fn to_f32(&self) -> Vec<f32> {
        let half = |bytes: &[u8], i: usize| f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32();
        let value = |i: usize| match self.kind {
            MatrixKind::F32 => f32::from_le_bytes([0, 1, 2, 3].map(|j| self.values[4 * i + j])),
            MatrixKind::F16 => half(&self.values, i),
            MatrixKind::Bf16 => bf16::from_le_bytes([self.values[2 * i], self.values[2 * i + 1]]).to_f32(),
            MatrixKind::Q8 => half(&self.scales, i / BLOCK) * f32::from(self.values[i].cast_signed()),
            MatrixKind::Q4 => {
                let nibble = self.values[i / 2] >> (4 * (i % 2)) & 15;
                let block = 2 * (i / BLOCK);
                half(&self.scales, block).mul_add(f32::from(nibble), half(&self.scales, block + 1))
            }
        };
        (0..self.n * self.k).map(value).collect()
    }
}

/// GGML keeps columns `j` and `16 + j` in a byte; kernels want columns `2j` and `2j + 1`.
fn neighbours(block: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let nibble = |column: usize| if column < 16 { block[column] & 15 } else { block[column - 16] >> 4 };
    (0..16).map(move |j| nibble(2 * j) | nibble(2 * j + 1) << 4)
}

/// A matrix on a device.
#[derive(Debug)]
pub struct DeviceMatrix {
    pub(super) kind: MatrixKind,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) values: Buffer<u8>,
    pub(super) scales: Buffer<u8>,
}

impl DeviceMatrix {
    /// Copies a matrix to the device.
    pub fn upload(device: &Device, host: &HostMatrix) -> Result<Self, Error> {
        let HostMatrix { kind, n, k, .. } = *host;
        Ok(Self { kind, n, k, values: device.upload(&host.values)?, scales: device.upload(&host.scales)? })
    }

    /// A matrix of zeros: for shapes whose values do not matter.
    pub fn zeros(device: &Device, kind: MatrixKind, n: usize, k: usize) -> Result<Self, Error> {
        check("columns of a matrix", k, k.is_multiple_of(kind.unit()), format_args!("a multiple of {}", kind.unit()))?;
        let (values, scales) = kind.bytes(n * k);
        Ok(Self { kind, n, k, values: device.buffer(values)?, scales: device.buffer(scales)? })
    }

    /// Rows: the width of the product.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns: the width of what it multiplies.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes that a product reads.
    pub fn bytes(&self) -> usize {
        self.values.len() + self.scales.len()
    }

    /// The type of activations that its kernel takes. 16-bit matrices go to the tensor cores, which work on tiles of 16;
    /// everything else is computed in f32.
    pub fn activation(&self) -> ActivationType {
        let tiles = self.n.is_multiple_of(16) && self.k.is_multiple_of(16);
        match self.kind {
            MatrixKind::F16 if tiles => ActivationType::F16,
            MatrixKind::Bf16 if tiles => ActivationType::Bf16,
            _ => ActivationType::F32,
        }
    }
}

/// Types of activations. The numbers are `Type` of `cuda/common.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum ActivationType {
    /// 32-bit floats.
    F32 = 0,
    /// IEEE half precision.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
}

impl ActivationType {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_the_floats_that_they_stand_for() {
        let floats = [1.5f32, -0.25, 3.0, 0.0, 7.0, -2.0, 0.5, 9.0];
        for (kind, bits) in [
            (MatrixKind::F16, floats.map(|x| f16::from_f32(x).to_bits())),
            (MatrixKind::Bf16, floats.map(|x| bf16::from_f32(x).to_bits())),
        ] {
            let matrix = HostMatrix::from_bits(kind, 1, 8, bits.into_iter()).expect("a matrix");
            assert_eq!(matrix, HostMatrix::from_f32(kind, 1, 8, &floats).expect("a matrix"));
            assert_eq!(matrix.to_f32(), floats);
        }
        assert!(HostMatrix::from_bits(MatrixKind::F32, 1, 8, [0u16; 8].into_iter()).is_err());
        assert!(HostMatrix::from_bits(MatrixKind::F16, 2, 8, [0u16; 8].into_iter()).is_err());
    }

    /// Bands of rows and of columns are those of the dequantised matrix, also of quantised ones.
    #[test]
    fn bands_are_cut_out_of_the_matrix() {
        let (n, k, parts) = (4, 128, 2);
        let bytes: Vec<u8> = (0..n * k / 32 * 20).map(|i| (i * 7 % 61) as u8).collect();
        let floats: Vec<f32> = (0..n * k).map(|i| i as f32).collect();
        for matrix in [
            HostMatrix::from_blocks(Format::Q4_1, n, k, &bytes).expect("a matrix"),
            HostMatrix::from_f32(MatrixKind::F32, n, k, &floats).expect("a matrix"),
        ] {
            let all = matrix.to_f32();
            for part in 0..parts {
                let rows = matrix.rows(part, parts).expect("rows").to_f32();
                assert_eq!(rows, all[part * n / parts * k..(part + 1) * n / parts * k]);
                let columns = matrix.columns(part, parts).expect("columns").to_f32();
                let band = part * k / parts..(part + 1) * k / parts;
                let want: Vec<f32> = all.chunks(k).flat_map(|row| &row[band.clone()]).copied().collect();
                assert_eq!(columns, want);
            }
            assert!(matrix.rows(0, 3).is_err() && matrix.columns(0, 3).is_err());
        }
    }
}
