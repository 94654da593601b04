//! Attention over paged keys and values.

use super::super::inputs::{BatchInputs, Limits};
use super::super::matrix::ActivationType;
use super::super::memory::Device;
use super::super::ops::{ATTENTION_SPLIT, Activations, Heads, LayerCache};
use super::elementwise::read;
use super::{Check, KV_DTYPES, Numbers, decode, encode, rounding};
use crate::{Error, RowInput};

/// Positions of a context, and of a block.
const POSITIONS: usize = 700;
const BLOCK: usize = 32;

pub(super) fn checks(device: &Device) -> Result<Vec<Check>, Error> {
    let mut numbers = Numbers(8);
    let (mut decode_check, mut extend_check, mut equal) = (
        Check::new("attention_decode"),
        Check::new("attention_extend"),
        Check::new("decode and extend attention are equal"),
    );
    // Groups of one, of several, and of more than a block handles; narrow and wide heads.
    for (query, kv, dim) in [(4, 4, 64), (9, 1, 64), (4, 2, 128), (2, 1, 8)] {
        for dtype in KV_DTYPES {
            let heads = Heads { query, kv, dim };
            let case = format!("{query}/{kv} heads of {dim}, {dtype:?}");
            let kind = if dim == 8 { ActivationType::Bf16 } else { ActivationType::F32 };
            let setting = Setting::new(device, &mut numbers, heads, dtype)?;
            let decoded = setting.run(device, kind, true)?;
            let extended = setting.run(device, kind, false)?;
            let want = setting.reference();
            let allowed = rounding(kind.bytes(), kind == ActivationType::Bf16);
            decode_check.close(&case, &decoded, &want, allowed);
            extend_check.close(&case, &extended, &want, allowed);
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            equal.same(&case, &bits(&decoded), &bits(&extended));
        }
    }
    Ok(vec![decode_check, extend_check, equal])
}

/// A batch with contexts of 1, around the length of a split, and of several splits; one row of several tokens; padding.
struct Setting {
    heads: Heads,
    dtype: crate::KvDtype,
    inputs: BatchInputs,
    tables: Vec<Vec<u32>>,
    /// Row and position of each token; none: padding.
    places: Vec<Option<(usize, usize)>>,
    qkv: Vec<f32>,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Setting {
    fn new(device: &Device, numbers: &mut Numbers, heads: Heads, dtype: crate::KvDtype) -> Result<Self, Error> {
        let starts = [(0, 1), (ATTENTION_SPLIT - 2, 3), (ATTENTION_SPLIT - 1, 1), (POSITIONS - 1, 1)];
        let per_row = POSITIONS.div_ceil(BLOCK);
        let blocks = starts.len() * per_row;
        let limits =
            Limits { tokens: 8, rows: starts.len(), vocab: 9, positions: POSITIONS, blocks, block_size: BLOCK };
        // Blocks in an order that is not theirs.
        let mut order: Vec<u32> = (0..blocks as u32).collect();
        for i in (1..blocks).rev() {
            order.swap(i, numbers.below(i + 1));
        }
        let tables: Vec<Vec<u32>> = order.chunks(per_row).map(<[u32]>::to_vec).collect();
        let mut inputs = BatchInputs::new(device, limits)?;
        let rows = starts.iter().zip(&tables).map(|((start, count), table)| RowInput {
            tokens: &[1, 2, 3][..*count],
            start: *start,
            blocks: table,
            sample: true,
        });
        inputs.set(&rows.collect::<Vec<_>>(), (8, 4))?;
        let places = starts.iter().enumerate();
        let mut places: Vec<_> =
            places.flat_map(|(row, (start, count))| (*start..start + count).map(move |at| Some((row, at)))).collect();
        places.resize(8, None);
        let numbers_of = |numbers: &mut Numbers| encode(&numbers.floats(blocks * BLOCK * heads.kv_width()), dtype);
        let (keys, values) = (numbers_of(numbers), numbers_of(numbers));
        // Large enough that some weights matter more than others.
        let qkv = numbers.floats(8 * heads.width()).iter().map(|x| 3.0 * x).collect();
        Ok(Self { heads, dtype, inputs, tables, places, qkv, keys, values })
    }

    fn run(&self, device: &Device, kind: ActivationType, shared: bool) -> Result<Vec<f32>, Error> {
        let (keys, values) = (device.upload(&self.keys)?, device.upload(&self.values)?);
        let cache = LayerCache { keys: keys.all(), values: values.all(), dtype: self.dtype };
        let out = Activations::new(device, kind, 8, self.heads.query * self.heads.dim)?;
        let partials = Device::partial_len(8, POSITIONS.div_ceil(ATTENTION_SPLIT), self.heads);
        let partials = device.buffer::<f32>(partials)?;
        let qkv = device.upload(&self.qkv)?;
        let how = (self.heads, shared.then(|| partials.all()));
        device.attention(qkv.all(), &self.inputs, cache, how, &out)?;
        read(&out, 8 * self.heads.query * self.heads.dim)
    }

    /// Softmax over all positions at once.
    fn reference(&self) -> Vec<f64> {
        let Heads { query, kv, dim } = self.heads;
        let (keys, values) = (decode(&self.keys, self.dtype), decode(&self.values, self.dtype));
        let mut out = Vec::new();
        for (token, place) in self.places.iter().enumerate() {
            let Some((row, position)) = *place else {
                out.extend(std::iter::repeat_n(0.0, query * dim));
                continue;
            };
            let at = |position: usize, head: usize| {
                let slot = self.tables[row][position / BLOCK] as usize * BLOCK + position % BLOCK;
                (slot * kv + head) * dim
            };
            for head in 0..query {
                let q = &self.qkv[(token * (query + 2 * kv) + head) * dim..][..dim];
                let kv_head = head / (query / kv);
                let scores: Vec<f64> = (0..=position)
                    .map(|p| {
                        let key = &keys[at(p, kv_head)..][..dim];
                        q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / (dim as f64).sqrt()
                    })
                    .collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
                let total: f64 = weights.iter().sum();
                out.extend((0..dim).map(|d| {
                    let sum =
                        weights.iter().enumerate().map(|(p, w)| w * f64::from(values[at(p, kv_head) + d])).sum::<f64>();
                    sum / total
                }));
            }
        }
        out
    }
}
