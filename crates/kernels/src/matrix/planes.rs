//! Quantised weights as planes of bits, with scales of two levels: one memory layout for most formats of files.
//!
//! A tile holds 16 rows x the columns of a file's block, in blocks of 32 columns. The integer of a weight is split into
//! a low plane of two or four bits and a high plane of none to two. A plane of `b` bits has groups of four columns:
//! `8 / b` groups share 64 bytes, in which byte `row * 4 + j` has column `j` of each group, the first in the lowest
//! bits. So four bytes of a row match four consecutive activations, as in [`super::Tile4`].
//!
//! The value of a weight is `scale * integer + minimum`. Scales are small integers times a factor of the tile's row,
//! which is exact in f32.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;

use super::unpack::{Block, FP4, IQ4};
use super::{Format, Target};
use crate::isa::{Level, Portable};
use crate::memory::{self, Buffer};
use crate::quantize::{self, Activations, BLOCK};
use crate::{Isa, LANES};

/// Groups of four columns in a block.
pub(super) const GROUPS: usize = BLOCK / 4;

/// How a format stores the scales of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    /// The factors are the scales.
    None,
    /// A signed byte per scale. If there are minima, a byte per minimum.
    Bytes,
    /// A byte has a scale in the low four bits and a minimum in the high ones.
    Nibbles,
}

/// What differs between formats.
pub(super) trait Layout: Debug + Send + Sync + 'static {
    const FORMAT: Format;
    /// Bits of the low plane.
    const LOW: usize;
    /// Bits of the high plane.
    const HIGH: usize;
    /// Parts of a block that have a scale of their own.
    const PARTS: usize = 1;
    const SCALES: Scales;
    /// Whether blocks have minima.
    const MINIMA: bool;
    /// This is subtracted from every integer.
    const ZERO: i32 = 0;
    /// If there is one, integers are places in this table.
    const BOOK: Option<[i8; 16]> = None;

    /// Widens factors.
    #[inline(always)]
    fn widen<V: Level>(bits: &[u16; LANES]) -> [f32; LANES] {
        V::widen_f16(bits)
    }

    // What follows from the above.
    /// Blocks of a tile.
    const BLOCKS: usize = Self::FORMAT.columns() / BLOCK;
    /// Places of the parts of a tile, in bytes. The low plane is the first.
    const HIGH_AT: usize = Self::BLOCKS * Self::LOW * 64;
    const SCALES_AT: usize = Self::HIGH_AT + Self::BLOCKS * Self::HIGH * 64;
    const MINIMA_AT: usize = Self::SCALES_AT
        + match Self::SCALES {
            Scales::None => 0,
            _ => Self::BLOCKS * Self::PARTS * LANES,
        };
    const FACTORS_AT: usize = Self::MINIMA_AT
        + match (Self::SCALES, Self::MINIMA) {
            (Scales::Bytes, true) => Self::BLOCKS * Self::PARTS * LANES,
            _ => 0,
        };
    /// Bytes of a tile.
    const BYTES: usize = (Self::FACTORS_AT + (1 + Self::MINIMA as usize) * 2 * LANES).next_multiple_of(LINE);
}

/// Defines layouts: a name, and the constants that are not the default.
macro_rules! layouts {
    ($($name:ident { $($item:item)* })*) => {
        $(
            #[derive(Debug)]
            pub(super) struct $name;
            impl Layout for $name {
                const FORMAT: Format = Format::$name;
                $($item)*
            }
        )*

        /// Repacks the blocks of a file.
        pub(super) fn pack(format: Format, n: usize, k: usize, bytes: &[u8]) -> Option<Box<dyn Planes>> {
            match format {
                $(Format::$name => Some(Box::new(Tiles::<$name>::new(n, k, bytes))),)*
                _ => None,
            }
        }
    };
}

layouts! {
    Q5_0 { const LOW: usize = 4; const HIGH: usize = 1; const SCALES: Scales = Scales::None; const MINIMA: bool = true; }
    Q5_1 { const LOW: usize = 4; const HIGH: usize = 1; const SCALES: Scales = Scales::None; const MINIMA: bool = true; }
    Q2K {
        const LOW: usize = 2;
        const HIGH: usize = 0;
        const PARTS: usize = 2;
        const SCALES: Scales = Scales::Nibbles;
        const MINIMA: bool = true;
    }
    Q3K {
        const LOW: usize = 2;
        const HIGH: usize = 1;
        const PARTS: usize = 2;
        const SCALES: Scales = Scales::Bytes;
        const MINIMA: bool = false;
        const ZERO: i32 = 4;
    }
    Q4K { const LOW: usize = 4; const HIGH: usize = 0; const SCALES: Scales = Scales::Bytes; const MINIMA: bool = true; }
    Q5K { const LOW: usize = 4; const HIGH: usize = 1; const SCALES: Scales = Scales::Bytes; const MINIMA: bool = true; }
    Q6K {
        const LOW: usize = 4;
        const HIGH: usize = 2;
        const PARTS: usize = 2;
        const SCALES: Scales = Scales::Bytes;
        const MINIMA: bool = false;
        const ZERO: i32 = 32;
    }
    Iq4Nl {
        const LOW: usize = 4;
        const HIGH: usize = 0;
        const SCALES: Scales = Scales::None;
        const MINIMA: bool = false;
        const BOOK: Option<[i8; 16]> = Some(IQ4);
    }
    Iq4Xs {
        const LOW: usize = 4;
        const HIGH: usize = 0;
        const SCALES: Scales = Scales::Bytes;
        const MINIMA: bool = false;
        const BOOK: Option<[i8; 16]> = Some(IQ4);
    }
    Mxfp4 {
        const LOW: usize = 4;
        const HIGH: usize = 0;
        const SCALES: Scales = Scales::None;
        const MINIMA: bool = false;
        const BOOK: Option<[i8; 16]> = Some(FP4);
        #[inline(always)]
        fn widen<V: Level>(bits: &[u16; LANES]) -> [f32; LANES] {
            bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
        }
    }
}

/// Bytes of a line, the unit of memory.
const LINE: usize = 32;

#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
struct Line([u8; LINE]);

/// A matrix in planes, whatever its format.
pub(crate) trait Planes: Debug + Send + Sync {
    /// Bytes in memory.
    fn bytes(&self) -> usize;
    /// Dequantises a row of `out.len()` columns.
    fn row(&self, row: usize, out: &mut [f32]);
    /// Computes the products of a range of tiles.
    ///
    /// # Safety
    /// The processor has `isa`; no other thread writes these tiles.
    unsafe fn multiply(&self, isa: Isa, k: usize, a: &Activations, range: Range<usize>, target: &Target<'_>);
}

/// Tiles of a layout, `[row / 16][column / columns of a tile]`.
#[derive(Debug)]
struct Tiles<L> {
    lines: Buffer<Line>,
    layout: PhantomData<L>,
}

impl<L: Layout> Tiles<L> {
    /// Repacks `[n, k]` weights; `k` is a multiple of the columns of a tile, and `bytes` are as long as they must be.
    fn new(n: usize, k: usize, bytes: &[u8]) -> Self {
        let (per_row, size) = (k / L::FORMAT.columns(), L::FORMAT.bytes());
        let count = n.div_ceil(LANES) * per_row;
        let mut lines = Buffer::from_fn(count * (L::BYTES / LINE), |_| Line([0; LINE]));
        memory::fill(&mut lines, L::BYTES / LINE, |first, lines| {
            for (index, lines) in lines.chunks_exact_mut(L::BYTES / LINE).enumerate() {
                let (row, column) = ((first + index) / per_row * LANES, (first + index) % per_row);
                let tile = flat_mut(lines);
                for lane in 0..LANES.min(n - row) {
                    let block = &bytes[((row + lane) * per_row + column) * size..][..size];
                    place::<L>(&Block::new(L::FORMAT, block), lane, tile);
                }
            }
        });
        Self { lines, layout: PhantomData }
    }

    /// The tiles of 16 rows.
    fn tiles(&self, tile: usize, k: usize) -> &[u8] {
        let bytes = k / L::FORMAT.columns() * L::BYTES;
        &flat(&self.lines)[tile * bytes..(tile + 1) * bytes]
    }
}

fn flat(lines: &[Line]) -> &[u8] {
    // SAFETY: a line is `LINE` bytes without padding.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LINE) }
}

fn flat_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LINE) }
}

/// Writes a row of a tile.
fn place<L: Layout>(block: &Block, row: usize, tile: &mut [u8]) {
    for (b, values) in block.values[..L::FORMAT.columns()].as_chunks::<BLOCK>().0.iter().enumerate() {
        // Four values at a time, in the bytes of a word.
        let groups: [u32; GROUPS] =
            std::array::from_fn(|group| u32::from_le_bytes(std::array::from_fn(|column| values[group * 4 + column])));
        plane(&groups, (0, L::LOW), &mut tile[b * L::LOW * 64..][..L::LOW * 64], row);
        if L::HIGH > 0 {
            let to = &mut tile[L::HIGH_AT + b * L::HIGH * 64..][..L::HIGH * 64];
            plane(&groups, (L::LOW, L::HIGH), to, row);
        }
    }
    if L::SCALES != Scales::None {
        for (i, scale) in block.scales[..L::BLOCKS * L::PARTS].iter().enumerate() {
            tile[L::SCALES_AT + i * LANES + row] = *scale;
        }
    }
    if L::FACTORS_AT > L::MINIMA_AT {
        for (i, minimum) in block.minima.iter().enumerate() {
            tile[L::MINIMA_AT + i * LANES + row] = *minimum;
        }
    }
    for (i, factor) in block.factors[..1 + usize::from(L::MINIMA)].iter().enumerate() {
        tile[L::FACTORS_AT + (i * LANES + row) * 2..][..2].copy_from_slice(&factor.to_le_bytes());
    }
}

/// Writes `bits` bits of every value, those above the lowest `skip`, into a row of a plane's block.
#[inline(always)]
fn plane(groups: &[u32; GROUPS], (skip, bits): (usize, usize), to: &mut [u8], row: usize) {
    let mask = 0x0101_0101 * ((1 << bits) - 1);
    for (word, groups) in groups.chunks_exact(8 / bits).enumerate() {
        let join = |all, (index, group): (usize, &u32)| all | (group >> skip & mask) << (index * bits);
        let packed = groups.iter().enumerate().fold(0, join);
        to[word * 64 + row * 4..][..4].copy_from_slice(&packed.to_le_bytes());
    }
}

/// Where a plane of `bits` bits has a group of four columns: the first byte of the first row, and the bits to its right.
#[inline(always)]
pub(super) const fn group_place(bits: usize, group: usize) -> (usize, usize) {
    let together = 8 / bits;
    (group / together * 64, group % together * bits)
}

/// The integer of a weight, before `ZERO` is subtracted, or its value in the table.
#[inline(always)]
fn integer<L: Layout>(tile: &[u8], block: usize, column: usize, lane: usize) -> i32 {
    let at = |start: usize, bits: usize| {
        let (first, shift) = group_place(bits, column / 4);
        tile[start + block * bits * 64 + first + lane * 4 + column % 4] >> shift & ((1 << bits) - 1) as u8
    };
    let mut value = at(0, L::LOW);
    if L::HIGH > 0 {
        value |= at(L::HIGH_AT, L::HIGH) << L::LOW;
    }
    match L::BOOK {
        Some(book) => i32::from(book[usize::from(value)]),
        None => i32::from(value),
    }
}

/// The factors of a tile: of scales and of minima.
pub(super) type Factors = [[f32; LANES]; 2];

#[inline(always)]
pub(super) fn factors<L: Layout, V: Level>(tile: &[u8]) -> Factors {
    std::array::from_fn(|which| {
        if which == 1 && !L::MINIMA {
            return [0.0; LANES];
        }
        let from = tile[L::FACTORS_AT + which * 2 * LANES..][..2 * LANES].as_chunks::<2>().0;
        L::widen::<V>(&std::array::from_fn(|lane| u16::from_le_bytes(from[lane])))
    })
}

/// The scales of a part of a block.
#[inline(always)]
pub(super) fn scales<L: Layout>(tile: &[u8], [factor, _]: &Factors, block: usize, part: usize) -> [f32; LANES] {
    if L::SCALES == Scales::None {
        return *factor;
    }
    let from = &tile[L::SCALES_AT + (block * L::PARTS + part) * LANES..][..LANES];
    std::array::from_fn(|lane| {
        let scale = if L::SCALES == Scales::Nibbles { from[lane] & 15 } else { from[lane] };
        factor[lane] * f32::from(scale as i8)
    })
}

/// The minima of a part of a block.
#[inline(always)]
pub(super) fn minima<L: Layout>(tile: &[u8], [_, factor]: &Factors, block: usize, part: usize) -> [f32; LANES] {
    let index = (block * L::PARTS + part) * LANES;
    let (from, shift) = match L::SCALES {
        Scales::None => return *factor,
        Scales::Bytes => (&tile[L::MINIMA_AT + index..][..LANES], 0),
        Scales::Nibbles => (&tile[L::SCALES_AT + index..][..LANES], 4),
    };
    std::array::from_fn(|lane| factor[lane] * f32::from(from[lane] >> shift))
}

/// What a part's minima are multiplied with: the sum of its activations.
#[inline(always)]
pub(super) fn sum<L: Layout>(block: &quantize::Block, part: usize) -> f32 {
    if L::PARTS == 1 { block.scaled_sum } else { block.scale * f32::from(block.sums[part]) }
}

impl<L: Layout> Planes for Tiles<L> {
    fn bytes(&self) -> usize {
        self.lines.len() * LINE
    }

    fn row(&self, row: usize, out: &mut [f32]) {
        let (tiles, lane) = (self.tiles(row / LANES, out.len()), row % LANES);
        let part = BLOCK / L::PARTS;
        for (tile, out) in tiles.chunks_exact(L::BYTES).zip(out.chunks_exact_mut(L::FORMAT.columns())) {
            let factors = factors::<L, Portable>(tile);
            for (index, out) in out.chunks_exact_mut(part).enumerate() {
                let (block, first) = (index / L::PARTS, index % L::PARTS * part);
                let scale = scales::<L>(tile, &factors, block, index % L::PARTS)[lane];
                let minimum = if L::MINIMA { minima::<L>(tile, &factors, block, index % L::PARTS)[lane] } else { 0.0 };
                for (at, out) in out.iter_mut().enumerate() {
                    let integer = integer::<L>(tile, block, first + at, lane) - L::ZERO;
                    *out = scale * integer as f32 + minimum;
                }
            }
        }
    }

    unsafe fn multiply(&self, isa: Isa, k: usize, a: &Activations, range: Range<usize>, target: &Target<'_>) {
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Avx2 {
            for tile in range {
                // SAFETY: promised by the caller.
                unsafe { super::avx2_planes::multiply::<L>(self.tiles(tile, k), a, tile, target) };
            }
            return;
        }
        let _ = isa;
        for tile in range {
            for row in 0..target.rows {
                // SAFETY: promised by the caller.
                unsafe { target.store(row, tile, &product::<L>(self.tiles(tile, k), a, row)) };
            }
        }
    }
}

/// The products of 16 rows of weights with a row of activations: the reference for other versions.
fn product<L: Layout>(tiles: &[u8], a: &Activations, row: usize) -> [f32; LANES] {
    let mut lanes = [0f32; LANES];
    for (index, tile) in tiles.chunks_exact(L::BYTES).enumerate() {
        let factors = factors::<L, Portable>(tile);
        for block in 0..L::BLOCKS {
            let input = a.block(row, index * L::BLOCKS + block);
            let values = input.bytes();
            for part in 0..L::PARTS {
                let scales = scales::<L>(tile, &factors, block, part);
                for lane in 0..LANES {
                    let mut dot = 0;
                    for column in part * BLOCK / L::PARTS..(part + 1) * BLOCK / L::PARTS {
                        dot += (integer::<L>(tile, block, column, lane) - L::ZERO) * i32::from(values[column]);
                    }
                    lanes[lane] = (dot as f32).mul_add(scales[lane] * input.scale, lanes[lane]);
                }
            }
            if L::MINIMA {
                for part in 0..L::PARTS {
                    let (minima, sum) = (minima::<L>(tile, &factors, block, part), sum::<L>(input, part));
                    for lane in 0..LANES {
                        lanes[lane] = minima[lane].mul_add(sum, lanes[lane]);
                    }
                }
            }
        }
    }
    lanes
}
