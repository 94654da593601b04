//! Weight matrices `[n, k]` (one row per output) in tiles of 16 rows, and their products with rows of activations.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod generic;
#[cfg(target_arch = "aarch64")]
mod neon;

use std::ops::Range;

use half::{bf16, f16};

use crate::memory::Buffer;
use crate::pool::{Pool, Shared};
use crate::quantize::{Activations, BLOCK};
use crate::{Error, Isa, LANES, check};

/// Quantised block formats of GGUF files, with 32 weights per block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// f16 scale, 4-bit values minus 8.
    Q4_0,
    /// f16 scale and minimum, 4-bit values.
    Q4_1,
    /// f16 scale, 8-bit values.
    Q8_0,
}

impl BlockKind {
    /// Bytes of a block in a file.
    pub fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q8_0 => 34,
        }
    }
}

/// 16 rows x 32 columns of 4-bit weights: `value = scale * q + minimum`.
///
/// Group `g` holds columns `8g..8g+8`; byte `g * 64 + row * 4 + j` has column `8g + j` in its low nibble and column
/// `8g + 4 + j` in its high one, so four bytes of a row match four consecutive activations.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Tile4 {
    pub(crate) values: [u8; 256],
    pub(crate) scales: [f16; LANES],
    pub(crate) minima: [f16; LANES],
}

/// 16 rows x 32 columns of 8-bit weights plus 128; byte `g * 64 + row * 4 + j` is column `4g + j`.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Tile8 {
    pub(crate) values: [u8; 512],
    pub(crate) scales: [f16; LANES],
}

#[derive(Debug)]
pub(crate) enum Tiles {
    Int4(Buffer<Tile4>),
    Int8(Buffer<Tile8>),
    /// `[tile][k][16]`.
    F32(Buffer<[f32; LANES]>),
    /// Bits of bfloat16, `[tile][k][16]`.
    Bf16(Buffer<[u16; LANES]>),
}

/// A repacked weight matrix.
#[derive(Debug)]
pub struct PackedMatrix {
    n: usize,
    k: usize,
    pub(crate) tiles: Tiles,
}

impl PackedMatrix {
    /// Repacks the blocks of a GGUF file, row by row.
    pub fn from_blocks(kind: BlockKind, n: usize, k: usize, bytes: &[u8]) -> Result<Self, Error> {
        check("columns of a quantised matrix", k, k > 0 && k.is_multiple_of(BLOCK), "a multiple of 32")?;
        let per_row = k / BLOCK;
        let expected = n * per_row * kind.bytes();
        check("bytes of a quantised matrix", bytes.len(), bytes.len() == expected, expected)?;
        let block = |row: usize, column: usize| -> Option<&[u8]> {
            (row < n).then(|| &bytes[(row * per_row + column) * kind.bytes()..][..kind.bytes()])
        };
        let (count, place) = (n.div_ceil(LANES) * per_row, |index| (index / per_row * LANES, index % per_row));
        let tiles = match kind {
            BlockKind::Q8_0 => Tiles::Int8(Buffer::from_fn(count, |index| {
                let (first, column) = place(index);
                tile8(|row| block(first + row, column))
            })),
            _ => Tiles::Int4(Buffer::from_fn(count, |index| {
                let (first, column) = place(index);
                tile4(kind, |row| block(first + row, column))
            })),
        };
        Ok(Self { n, k, tiles })
    }

    /// Repacks `[n, k]` floats without conversion.
    pub fn from_f32(n: usize, k: usize, values: &[f32]) -> Result<Self, Error> {
        Ok(Self { n, k, tiles: Tiles::F32(dense(n, k, values, |value| value)?) })
    }

    /// Repacks `[n, k]` floats, rounded to bfloat16.
    pub fn bf16_from_f32(n: usize, k: usize, values: &[f32]) -> Result<Self, Error> {
        Ok(Self { n, k, tiles: Tiles::Bf16(dense(n, k, values, |value| bf16::from_f32(value).to_bits())?) })
    }

    /// Number of outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of weights that a product reads.
    pub fn bytes(&self) -> usize {
        match &self.tiles {
            Tiles::Int4(tiles) => std::mem::size_of_val(&tiles[..]),
            Tiles::Int8(tiles) => std::mem::size_of_val(&tiles[..]),
            Tiles::F32(values) => std::mem::size_of_val(&values[..]),
            Tiles::Bf16(values) => std::mem::size_of_val(&values[..]),
        }
    }

    /// Whether products need quantised activations.
    pub fn is_quantized(&self) -> bool {
        matches!(self.tiles, Tiles::Int4(_) | Tiles::Int8(_))
    }

    /// Dequantises one row.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n && out.len() == self.k, "row {row} of {}, {} columns of {}", self.n, out.len(), self.k);
        let (tile, lane, k) = (row / LANES, row % LANES, self.k);
        let blocks = tile * (k / BLOCK)..(tile + 1) * (k / BLOCK);
        let dense = tile * k..(tile + 1) * k;
        match &self.tiles {
            Tiles::F32(values) => {
                out.iter_mut().zip(&values[dense]).for_each(|(out, v)| *out = v[lane]);
            }
            Tiles::Bf16(values) => {
                out.iter_mut().zip(&values[dense]).for_each(|(out, v)| *out = bf16::from_bits(v[lane]).to_f32())
            }
            Tiles::Int4(tiles) => {
                for (out, tile) in out.chunks_exact_mut(BLOCK).zip(&tiles[blocks]) {
                    let (scale, minimum) = (tile.scales[lane].to_f32(), tile.minima[lane].to_f32());
                    for (at, out) in out.iter_mut().enumerate() {
                        let byte = tile.values[at / 8 * 64 + lane * 4 + at % 4];
                        *out = scale * f32::from(if at % 8 < 4 { byte & 15 } else { byte >> 4 }) + minimum;
                    }
                }
            }
            Tiles::Int8(tiles) => {
                for (out, tile) in out.chunks_exact_mut(BLOCK).zip(&tiles[blocks]) {
                    let scale = tile.scales[lane].to_f32();
                    for (at, out) in out.iter_mut().enumerate() {
                        *out = scale * (i32::from(tile.values[at / 4 * 64 + lane * 4 + at % 4]) - 128) as f32;
                    }
                }
            }
        }
    }

    /// Computes `out[r, offset..offset + n] = W x[r]` for every row of `x` (`[rows, k]`) or of `quantized`, depending
    /// on the weights. Rows of `out` are `stride` apart.
    pub fn multiply(
        &self,
        isa: Isa,
        pool: &Pool,
        inputs: (&[f32], &Activations),
        out: &mut [f32],
        (stride, offset): (usize, usize),
    ) -> Result<(), Error> {
        multiply_side_by_side(&[self], isa, pool, inputs, out, Columns { stride, offset, add: false })
    }

    /// Tiles that one thread takes at a time: few, so that small matrices divide evenly among threads, but enough for
    /// kernels that compute several tiles together.
    fn group(&self) -> usize {
        if self.is_quantized() { 2 } else { 4 }
    }

    fn groups(&self) -> usize {
        self.n.div_ceil(LANES * self.group())
    }

    /// Computes the products of some groups of tiles.
    fn multiply_groups(
        &self,
        isa: Isa,
        (x, quantized): (&[f32], &Activations),
        groups: Range<usize>,
        out: &Target<'_>,
    ) {
        let range = groups.start * self.group()..(groups.end * self.group()).min(self.n.div_ceil(LANES));
        let k = self.k;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::check` detected the features. Every group is given to exactly one thread.
        unsafe {
            match (isa, &self.tiles) {
                (Isa::Avx512Vnni, Tiles::Int4(t)) => return avx512::int4(t, k, quantized, range, out),
                (Isa::Avx512Vnni, Tiles::Int8(t)) => return avx512::int8(t, k, quantized, range, out),
                (Isa::Avx512Vnni, Tiles::F32(t)) => return avx512::dense(t.as_flattened(), k, x, range, out),
                (Isa::Avx512Vnni, Tiles::Bf16(t)) => return avx512::dense(t.as_flattened(), k, x, range, out),
                (Isa::AvxVnni, Tiles::Int4(t)) => return avx2::int4_vnni(t, k, quantized, range, out),
                (Isa::AvxVnni, Tiles::Int8(t)) => return avx2::int8_vnni(t, k, quantized, range, out),
                (Isa::Avx2, Tiles::Int4(t)) => return avx2::int4(t, k, quantized, range, out),
                (Isa::Avx2, Tiles::Int8(t)) => return avx2::int8(t, k, quantized, range, out),
                (Isa::Avx2 | Isa::AvxVnni, Tiles::F32(t)) => return avx2::dense(t.as_flattened(), k, x, range, out),
                (Isa::Avx2 | Isa::AvxVnni, Tiles::Bf16(t)) => return avx2::dense(t.as_flattened(), k, x, range, out),
                _ => {}
            }
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            match (isa, &self.tiles) {
                (Isa::NeonDotprod, Tiles::Int4(t)) => return neon::multiply(t, k, quantized, range, out),
                (Isa::NeonDotprod, Tiles::Int8(t)) => return neon::multiply(t, k, quantized, range, out),
                _ => {}
            }
        }
        generic::multiply(isa, self, (x, quantized), range, out);
    }
}

/// Position of products in rows of outputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    /// Distance between rows.
    pub(crate) stride: usize,
    /// First column.
    pub(crate) offset: usize,
    /// Whether products are added to the existing values instead of replacing them.
    pub(crate) add: bool,
}

/// Multiplies the same rows with several matrices of the same kind in one region of the pool. The products are
/// adjacent.
pub(crate) fn multiply_side_by_side(
    matrices: &[&PackedMatrix],
    isa: Isa,
    pool: &Pool,
    inputs: (&[f32], &Activations),
    out: &mut [f32],
    columns: Columns,
) -> Result<(), Error> {
    isa.check()?;
    let Columns { stride, offset, .. } = columns;
    let (x, quantized) = inputs;
    let rows = out.len() / stride.max(1);
    let end = offset + matrices.iter().map(|matrix| matrix.n).sum::<usize>();
    check("columns of a product", end, end <= stride, format_args!("at most {stride}"))?;
    for matrix in matrices {
        if matrix.is_quantized() {
            let fits = quantized.width == matrix.k && quantized.rows == rows;
            check("quantised activations", quantized.rows, fits, format_args!("{rows} rows of {}", matrix.k))?;
        } else {
            check("activations", x.len(), x.len() == rows * matrix.k, format_args!("{rows} rows of {}", matrix.k))?;
        }
    }
    if rows == 0 {
        return Ok(());
    }
    let shared = Shared::new(&mut out[..rows * stride]);
    pool.split(matrices.iter().map(|matrix| matrix.groups()).sum(), |range| {
        let (mut first, mut offset) = (0, offset);
        for matrix in matrices {
            let groups = matrix.groups();
            let part = range.start.clamp(first, first + groups) - first..range.end.clamp(first, first + groups) - first;
            if !part.is_empty() {
                let target = Target { out: &shared, rows, columns: Columns { offset, ..columns }, n: matrix.n };
                matrix.multiply_groups(isa, inputs, part, &target);
            }
            (first, offset) = (first + groups, offset + matrix.n);
        }
    });
    Ok(())
}

/// Prefetches a tile that is needed soon, if it exists.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch<T>(tile: *const T) {
    for line in (0..size_of::<T>()).step_by(64) {
        // SAFETY: a prefetch has no effect but to load a cache line, if it exists.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(tile.cast::<i8>().wrapping_add(line))
        };
    }
}

/// Destination of products.
pub(crate) struct Target<'a> {
    out: &'a Shared<'a, f32>,
    rows: usize,
    columns: Columns,
    n: usize,
}

impl Target<'_> {
    /// The outputs of a tile for a row: 16, or fewer at the end of a matrix.
    ///
    /// # Safety
    /// No other thread uses this tile, and no other result of this function for it is live.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    unsafe fn place(&self, row: usize, tile: usize) -> &mut [f32] {
        let column = tile * LANES;
        let start = row * self.columns.stride + self.columns.offset + column;
        // SAFETY: in bounds (checked by `part`); this thread owns the tile's columns.
        unsafe { self.out.part(start..start + LANES.min(self.n - column)) }
    }

    /// Stores the 16 outputs of a tile for a row.
    ///
    /// # Safety
    /// As for `place`.
    #[inline(always)]
    unsafe fn store(&self, row: usize, tile: usize, lanes: &[f32; LANES]) {
        // SAFETY: promised by the caller.
        for (out, lane) in unsafe { self.place(row, tile) }.iter_mut().zip(lanes) {
            *out = if self.columns.add { *out + lane } else { *lane };
        }
    }
}

/// The first four bytes.
fn four(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn tile4<'a>(kind: BlockKind, block: impl Fn(usize) -> Option<&'a [u8]>) -> Tile4 {
    let mut tile = Tile4 { values: [0; 256], scales: [f16::ZERO; LANES], minima: [f16::ZERO; LANES] };
    for row in 0..LANES {
        let Some(bytes) = block(row) else { continue };
        let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]);
        tile.scales[row] = half(0);
        let quants = match kind {
            BlockKind::Q4_1 => {
                tile.minima[row] = half(2);
                &bytes[4..]
            }
            _ => {
                // q - 8 is q with a minimum of -8 scales. Multiplying by a power of two loses nothing.
                tile.minima[row] = f16::from_f32(-8.0 * half(0).to_f32());
                &bytes[2..]
            }
        };
        // The file has columns 0..16 in the low nibbles and 16..32 in the high ones. Four columns at a time:
        for group in 0..4 {
            let at = 8 * (group % 2);
            let (first, second) = (four(&quants[at..]), four(&quants[at + 4..]));
            let (low, high) = if group < 2 { (first, second << 4) } else { (first >> 4, second) };
            let bytes = low & 0x0f0f_0f0f | high & 0xf0f0_f0f0;
            tile.values[group * 64 + row * 4..][..4].copy_from_slice(&bytes.to_le_bytes());
        }
    }
    tile
}

fn tile8<'a>(block: impl Fn(usize) -> Option<&'a [u8]>) -> Tile8 {
    let mut tile = Tile8 { values: [128; 512], scales: [f16::ZERO; LANES] };
    for row in 0..LANES {
        let Some(bytes) = block(row) else { continue };
        tile.scales[row] = f16::from_le_bytes([bytes[0], bytes[1]]);
        for group in 0..BLOCK / 4 {
            // Adds 128 to every byte.
            let bytes = four(&bytes[2 + 4 * group..]) ^ 0x8080_8080;
            tile.values[group * 64 + row * 4..][..4].copy_from_slice(&bytes.to_le_bytes());
        }
    }
    tile
}

fn dense<T: Copy + Default>(
    n: usize,
    k: usize,
    values: &[f32],
    convert: impl Fn(f32) -> T,
) -> Result<Buffer<[T; LANES]>, Error> {
    check("columns of a matrix", k, k > 0, "at least 1")?;
    check("values of a matrix", values.len(), values.len() == n * k, n * k)?;
    Ok(Buffer::from_fn(n.div_ceil(LANES) * k, |index| {
        let (first, column) = (index / k * LANES, index % k);
        let mut lanes = [T::default(); LANES];
        for (row, lane) in (first..n).zip(&mut lanes) {
            *lane = convert(values[row * k + column]);
        }
        lanes
    }))
}
