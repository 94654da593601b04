//! Keys and values of one model, in blocks of positions.

use crate::isa::{Level, for_each_isa, widen_f16};
use crate::pool::Shared;
use crate::{Error, Isa, LANES, check};

/// Largest head dimension.
pub(crate) const MAX_HEAD: usize = 256;

/// Storage format of keys and values. Computations use f32.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// 32-bit floats, as computed.
    #[default]
    F32,
    /// Half the size, with 11 bits of precision. Saturates at 65504; NaN also becomes 65504.
    F16,
    /// Half the size, with 8 bits of precision and the range of f32.
    Bf16,
}

impl KvDtype {
    /// Bytes per number.
    pub fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }
}

/// Keys and values of one model in blocks of positions.
///
/// Keys are stored as `[layer][kv head][block][position / 16][head_dim][16]`, so that 16 positions can be scored
/// together; values as `[layer][kv head][block][position][head_dim]`. A head reads neighbouring blocks as one stream.
#[derive(Debug)]
pub struct KvCache {
    shape: Shape,
    dtype: KvDtype,
    pub(crate) layers: Layers,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) block_size: usize,
    pub(crate) blocks: usize,
}

impl Shape {
    /// Offset of a head's numbers in a block.
    #[inline(always)]
    pub(crate) fn base(&self, block: usize, head: usize) -> usize {
        (head * self.blocks + block) * self.size()
    }

    /// Numbers of a head in a block.
    fn size(&self) -> usize {
        self.block_size * self.head_dim
    }
}

/// A stored number.
pub(crate) trait Element {
    type Bits: Copy;
    /// Converts 16 numbers to f32, exactly.
    fn widen<L: Level>(bits: &[Self::Bits; LANES]) -> [f32; LANES];
    fn widen_one(bits: Self::Bits) -> f32;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl Element for F32 {
    type Bits = f32;
    #[inline(always)]
    fn widen<L: Level>(bits: &[f32; LANES]) -> [f32; LANES] {
        *bits
    }
    #[inline(always)]
    fn widen_one(bits: f32) -> f32 {
        bits
    }
}

impl Element for F16 {
    type Bits = u16;
    #[inline(always)]
    fn widen<L: Level>(bits: &[u16; LANES]) -> [f32; LANES] {
        L::widen_f16(bits)
    }
    #[inline(always)]
    fn widen_one(bits: u16) -> f32 {
        widen_f16(bits)
    }
}

impl Element for Bf16 {
    type Bits = u16;
    #[inline(always)]
    fn widen<L: Level>(bits: &[u16; LANES]) -> [f32; LANES] {
        bits.map(Self::widen_one)
    }
    #[inline(always)]
    fn widen_one(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }
}

/// Keys and values of each layer.
#[derive(Debug)]
pub(crate) enum Layers {
    F32(Vec<[Vec<f32>; 2]>),
    F16(Vec<[Vec<u16>; 2]>),
    Bf16(Vec<[Vec<u16>; 2]>),
}

impl KvCache {
    /// Creates a cache of `blocks` blocks of `block_size` positions (a multiple of 16). Memory is touched only when
    /// used.
    pub fn new(
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        (blocks, block_size): (usize, usize),
        dtype: KvDtype,
    ) -> Result<Self, Error> {
        check("KV block size", block_size, block_size > 0 && block_size.is_multiple_of(LANES), "a multiple of 16")?;
        let fits = head_dim > 0 && head_dim.is_multiple_of(2) && head_dim <= MAX_HEAD;
        check("head dimension", head_dim, fits, format_args!("even, at most {MAX_HEAD}"))?;
        let shape = Shape { kv_heads, head_dim, block_size, blocks };
        let size = shape.base(0, kv_heads);
        let halves = || (0..layers).map(|_| [vec![0; size], vec![0; size]]).collect();
        let layers = match dtype {
            KvDtype::F32 => Layers::F32((0..layers).map(|_| [vec![0.0; size], vec![0.0; size]]).collect()),
            KvDtype::F16 => Layers::F16(halves()),
            KvDtype::Bf16 => Layers::Bf16(halves()),
        };
        Ok(Self { shape, dtype, layers })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.shape.blocks
    }

    /// Positions of a block.
    pub fn block_size(&self) -> usize {
        self.shape.block_size
    }

    /// How keys and values are stored.
    pub fn dtype(&self) -> KvDtype {
        self.dtype
    }

    pub(crate) fn layers(&self) -> usize {
        match &self.layers {
            Layers::F32(layers) => layers.len(),
            Layers::F16(layers) | Layers::Bf16(layers) => layers.len(),
        }
    }

    /// Bytes of the keys and values of one block in all layers.
    pub fn block_bytes(&self) -> usize {
        2 * self.layers() * self.shape.kv_heads * self.shape.size() * self.dtype.bytes()
    }

    /// Copies keys and values of block `from` to block `to`, in all layers.
    pub fn copy_block(&mut self, from: u32, to: u32) -> Result<(), Error> {
        let (last, shape) = (from.max(to) as usize, self.shape);
        check("KV block", last, last < shape.blocks, format_args!("below {}", shape.blocks))?;
        fn copy<T: Copy>(layers: &mut [[Vec<T>; 2]], shape: Shape, (from, to): (u32, u32)) {
            for numbers in layers.as_flattened_mut() {
                for head in 0..shape.kv_heads {
                    let start = shape.base(from as usize, head);
                    numbers.copy_within(start..start + shape.size(), shape.base(to as usize, head));
                }
            }
        }
        match &mut self.layers {
            Layers::F32(layers) => copy(layers, shape, (from, to)),
            Layers::F16(layers) | Layers::Bf16(layers) => copy(layers, shape, (from, to)),
        }
        Ok(())
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// A layer, into which several threads can store new positions.
    pub(crate) fn writer(&mut self, layer: usize) -> Writer<'_> {
        fn parts<T>([keys, values]: &mut [Vec<T>; 2]) -> [Shared<'_, T>; 2] {
            [Shared::new(keys), Shared::new(values)]
        }
        let to = match &mut self.layers {
            Layers::F32(layers) => Parts::F32(parts(&mut layers[layer])),
            Layers::F16(layers) => Parts::F16(parts(&mut layers[layer])),
            Layers::Bf16(layers) => Parts::Bf16(parts(&mut layers[layer])),
        };
        Writer { shape: self.shape, to }
    }
}

enum Parts<'a> {
    F32([Shared<'a, f32>; 2]),
    F16([Shared<'a, u16>; 2]),
    Bf16([Shared<'a, u16>; 2]),
}

/// Stores new positions of one layer.
pub(crate) struct Writer<'a> {
    shape: Shape,
    to: Parts<'a>,
}

impl Writer<'_> {
    /// Stores keys and values, `[kv_heads, head_dim]` each, of one position.
    ///
    /// # Safety
    /// No other thread stores this position of this block.
    pub(crate) unsafe fn append(&self, isa: Isa, blocks: &[u32], position: usize, k: &[f32], v: &[f32]) {
        let Shape { head_dim: dim, block_size, .. } = self.shape;
        let (block, at) = (blocks[position / block_size] as usize, position % block_size);
        for (head, (k, v)) in k.chunks_exact(dim).zip(v.chunks_exact(dim)).enumerate() {
            let base = self.shape.base(block, head);
            let mut halves = [[0; MAX_HEAD]; 2];
            let [k16, v16] = halves.each_mut().map(|half| &mut half[..dim]);
            // SAFETY: promised by the caller.
            unsafe {
                match &self.to {
                    Parts::F32(to) => store(to, (base, at), k, v),
                    Parts::F16(to) => {
                        to_f16(isa, k, k16);
                        to_f16(isa, v, v16);
                        store(to, (base, at), k16, v16);
                    }
                    Parts::Bf16(to) => {
                        to_bf16(isa, k, k16);
                        to_bf16(isa, v, v16);
                        store(to, (base, at), k16, v16);
                    }
                }
            }
        }
    }
}

/// # Safety
/// No other thread stores position `at` of the head that begins at `base`.
unsafe fn store<T: Copy>([keys, values]: &[Shared<'_, T>; 2], (base, at): (usize, usize), k: &[T], v: &[T]) {
    let dim = k.len();
    let start = base + at / LANES * LANES * dim + at % LANES;
    for (d, key) in k.iter().enumerate() {
        // Element by element, because neighbours belong to other positions, which other threads may store.
        // SAFETY: promised by the caller.
        unsafe { keys.set(start + d * LANES, *key) };
    }
    // SAFETY: promised by the caller.
    unsafe { values.part(base + at * dim..base + (at + 1) * dim) }.copy_from_slice(v);
}

for_each_isa! { fn to_f16(x: &[f32], out: &mut [u16]) = to_f16_body }
for_each_isa! { fn to_bf16(x: &[f32], out: &mut [u16]) = to_bf16_body }

#[inline(always)]
fn to_f16_body(x: &[f32], out: &mut [u16]) {
    const MAX: u32 = 65504f32.to_bits();
    const LEAST_NORMAL: f32 = 6.103_515_6e-5;
    for (x, out) in x.iter().zip(out) {
        let sign = x.to_bits() >> 16 & 0x8000;
        // Compared as integers, which have the same order; NaN is above all numbers.
        let x = f32::from_bits(x.abs().to_bits().min(MAX));
        // Rounds to nearest, ties to even. If the result is normal, this is done in integers. If it is subnormal, it
        // is done by adding a number whose last bit has the weight of the result's last bit.
        let normal = (x.to_bits() + 0xfff + (x.to_bits() >> 13 & 1)).wrapping_sub(112 << 23) >> 13;
        let small = (x + 0.5).to_bits() - 0.5f32.to_bits();
        *out = (sign | if x < LEAST_NORMAL { small } else { normal }) as u16;
    }
}

#[inline(always)]
fn to_bf16_body(x: &[f32], out: &mut [u16]) {
    for (x, out) in x.iter().zip(out) {
        let rounded = (x.to_bits().wrapping_add(0x7fff + (x.to_bits() >> 16 & 1))) >> 16;
        *out = if x.is_nan() { 0x7fc0 } else { rounded as u16 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rounding_is_that_of_the_half_crate(bits in prop::collection::vec(any::<u32>(), 1..40), scale in -30i32..20) {
            let mut x: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits)).collect();
            // Most bit patterns are far outside the range of f16.
            x.extend(bits.iter().map(|bits| (*bits as i32 as f32) * 2f32.powi(scale - 31)));
            x.extend([0.0, -0.0, 65503.9, 65504.0, 65520.0, -1e9, f32::INFINITY, 6.1e-5, 2.98e-8, 2.99e-8]);
            for isa in Isa::available() {
                let mut halves = vec![0; x.len()];
                to_f16(isa, &x, &mut halves);
                for (x, half) in x.iter().zip(&halves) {
                    let want = f16::from_f32(if x.is_nan() { 65504f32.copysign(*x) } else { x.clamp(-65504.0, 65504.0) });
                    prop_assert_eq!(*half, want.to_bits(), "{}", x);
                }
                to_bf16(isa, &x, &mut halves);
                for (x, half) in x.iter().zip(&halves) {
                    let want = bf16::from_f32(*x);
                    prop_assert!(*half == want.to_bits() || x.is_nan() && bf16::from_bits(*half).is_nan(), "{}", x);
                }
            }
        }
    }
}
