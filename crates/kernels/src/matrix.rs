//! Weight matrices `[n, k]` (one row per output) in tiles of 16 rows, and their products with rows of activations.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_planes;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod format;
mod generic;
#[cfg(target_arch = "aarch64")]
mod neon;
mod planes;
mod tiles;
mod unpack;

use std::ops::Range;

use half::{bf16, f16};

pub use self::format::Format;
use self::planes::Planes;
use self::tiles::{Tile4, Tile8, dense, tile4, tile8};
use crate::memory::Buffer;
use crate::pool::{Pool, Shared};
use crate::quantize::{Activations, BLOCK};
use crate::{Error, Isa, LANES, check};

#[derive(Debug)]
pub(crate) enum Tiles {
    Int4(Buffer<Tile4>),
    Int8(Buffer<Tile8>),
    /// `[tile][k][16]`.
    F32(Buffer<[f32; LANES]>),
    /// Bits of bfloat16, `[tile][k][16]`.
    Bf16(Buffer<[u16; LANES]>),
    /// `[tile][k][16]`.
    F16(Buffer<[f16; LANES]>),
    Planes(Box<dyn Planes>),
}

/// A repacked weight matrix.
#[derive(Debug)]
pub struct PackedMatrix {
    n: usize,
    k: usize,
    format: Format,
    tiles: Tiles,
}

impl PackedMatrix {
    /// Repacks weights as a GGUF file holds them, row by row. A row is a whole number of blocks.
    pub fn from_blocks(format: Format, n: usize, k: usize, bytes: &[u8]) -> Result<Self, Error> {
        let (columns, size) = (format.columns(), format.bytes());
        let fits = k > 0 && k.is_multiple_of(columns);
        check("columns of a matrix", k, fits, format_args!("a multiple of {columns}, the block of {format}"))?;
        let per_row = k / columns;
        let expected = n * per_row * size;
        check("bytes of a matrix", bytes.len(), bytes.len() == expected, format_args!("{expected}, as {format}"))?;
        let block = |row: usize, column: usize| -> Option<&[u8]> {
            (row < n).then(|| &bytes[(row * per_row + column) * size..][..size])
        };
        let (count, place) = (n.div_ceil(LANES) * per_row, |index| (index / per_row * LANES, index % per_row));
        let two = |index: usize| u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
        let tiles = match format {
            Format::Q8_0 => Tiles::Int8(Buffer::from_fn(count, |index| {
                let (first, column) = place(index);
                tile8(|row| block(first + row, column))
            })),
            Format::Q4_0 | Format::Q4_1 => Tiles::Int4(Buffer::from_fn(count, |index| {
                let (first, column) = place(index);
                tile4(format, |row| block(first + row, column))
            })),
            Format::F32 => {
                let words = bytes.as_chunks::<4>().0;
                Tiles::F32(dense(n, k, |index| f32::from_le_bytes(words[index])))
            }
            Format::F16 => Tiles::F16(dense(n, k, |index| f16::from_bits(two(index)))),
            Format::Bf16 => Tiles::Bf16(dense(n, k, two)),
            _ => match planes::pack(format, n, k, bytes) {
                Some(planes) => Tiles::Planes(planes),
                None => return Err(Error::Device { what: "matrix", reason: format!("{format} has no layout") }),
            },
        };
        Ok(Self { n, k, format, tiles })
    }

    /// Repacks `[n, k]` floats without conversion.
    pub fn from_f32(n: usize, k: usize, values: &[f32]) -> Result<Self, Error> {
        check_values(n, k, values)?;
        Ok(Self { n, k, format: Format::F32, tiles: Tiles::F32(dense(n, k, |index| values[index])) })
    }

    /// Repacks `[n, k]` floats, rounded to bfloat16.
    pub fn bf16_from_f32(n: usize, k: usize, values: &[f32]) -> Result<Self, Error> {
        check_values(n, k, values)?;
        let tiles = Tiles::Bf16(dense(n, k, |index| bf16::from_f32(values[index]).to_bits()));
        Ok(Self { n, k, format: Format::Bf16, tiles })
    }

    /// Repacks `[n, k]` floats, rounded to f16. None of them may be 65520 or more.
    pub fn f16_from_f32(n: usize, k: usize, values: &[f32]) -> Result<Self, Error> {
        check_values(n, k, values)?;
        let tiles = Tiles::F16(dense(n, k, |index| f16::from_f32(values[index])));
        Ok(Self { n, k, format: Format::F16, tiles })
    }

    /// How the weights are stored.
    pub fn format(&self) -> Format {
        self.format
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
            Tiles::F16(values) => std::mem::size_of_val(&values[..]),
            Tiles::Planes(planes) => planes.bytes(),
        }
    }

    /// Whether products need quantised activations.
    pub fn is_quantized(&self) -> bool {
        self.format.is_quantized()
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
            Tiles::F16(values) => {
                out.iter_mut().zip(&values[dense]).for_each(|(out, v)| *out = v[lane].to_f32());
            }
            Tiles::Planes(planes) => planes.row(row, out),
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
        let path = isa.path(self.format);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::check` detected the features. Every group is given to exactly one thread.
        unsafe {
            match (path, &self.tiles) {
                (Isa::Avx512Vnni, Tiles::Int4(t)) => return avx512::int4(t, k, quantized, range, out),
                (Isa::Avx512Vnni, Tiles::Int8(t)) => return avx512::int8(t, k, quantized, range, out),
                (Isa::Avx512Vnni, Tiles::F32(t)) => return avx512::dense(t.as_flattened(), k, x, range, out),
                (Isa::Avx512Vnni, Tiles::Bf16(t)) => return avx512::dense(t.as_flattened(), k, x, range, out),
                (Isa::AvxVnni, Tiles::Int4(t)) => return avx2::int4_vnni(t, k, quantized, range, out),
                (Isa::AvxVnni, Tiles::Int8(t)) => return avx2::int8_vnni(t, k, quantized, range, out),
                (Isa::Avx2, Tiles::Int4(t)) => return avx2::int4(t, k, quantized, range, out),
                (Isa::Avx2, Tiles::Int8(t)) => return avx2::int8(t, k, quantized, range, out),
                (Isa::Avx2, Tiles::F32(t)) => return avx2::dense(t.as_flattened(), k, x, range, out),
                (Isa::Avx2, Tiles::Bf16(t)) => return avx2::dense(t.as_flattened(), k, x, range, out),
                (Isa::Avx2, Tiles::F16(t)) => return avx2::dense(t.as_flattened(), k, x, range, out),
                _ => {}
            }
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            match (path, &self.tiles) {
                (Isa::NeonDotprod, Tiles::Int4(t)) => return neon::multiply(t, k, quantized, range, out),
                (Isa::NeonDotprod, Tiles::Int8(t)) => return neon::multiply(t, k, quantized, range, out),
                _ => {}
            }
        }
        if let Tiles::Planes(planes) = &self.tiles {
            // SAFETY: as above.
            return unsafe { planes.multiply(path, k, quantized, range, out) };
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

fn check_values(n: usize, k: usize, values: &[f32]) -> Result<(), Error> {
    check("columns of a matrix", k, k > 0, "at least 1")?;
    check("values of a matrix", values.len(), values.len() == n * k, n * k)
}

/// Prefetches a tile that is needed soon, if it exists.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch<T>(tile: *const T) {
    prefetch_bytes(tile.cast(), size_of::<T>());
}

/// Prefetches memory that is needed soon, if it exists.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_bytes(start: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch has no effect but to load a cache line, if it exists.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(start.cast::<i8>().wrapping_add(line))
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
