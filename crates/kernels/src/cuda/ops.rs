//! Launches with checked shapes: one function per kernel of `cuda/`.
//!
//! Ids that kernels follow (tokens, positions, slots, rows) come from [`BatchInputs`](super::BatchInputs), which checked
//! them, or from a kernel that only writes ids in range.

use super::driver::{Arg, failed};
use super::inputs::BatchInputs;
use super::matrix::{ActivationType, DeviceMatrix, MatrixKind};
use super::memory::{Buffer, Device, Slice, optional};
use crate::{Error, KvDtype, check};

/// Threads of a block that works on a row.
const THREADS: usize = 256;
/// `ATTENTION_THREADS` of `attention.cu`.
const ATTENTION_THREADS: usize = 128;
/// `GROUP` of `attention.cu`.
const GROUP: usize = 8;
/// `MAX_DIM` of `attention.cu`.
pub(super) const MAX_HEAD: usize = 128;
/// `SPLIT` of `attention.cu`: positions that a block of a decode attends to.
pub const ATTENTION_SPLIT: usize = 256;
/// Blocks along the splits of a context; longer ones loop.
const MAX_SPLIT_BLOCKS: usize = 16;
/// `MAX_TOP` of `signals.cu`.
pub const MAX_TOP: usize = 128;
/// Rows of a matrix of activations are there up to a multiple of this: the tensor cores read whole tiles.
pub const ROW_PADDING: usize = 64;
/// Words that the kernel `logit_signals` writes per row: candidate, logit of the extra row, entropy, logarithm of the sum of
/// exponentials; the last one is for a routing score.
pub const SIGNAL_WORDS: usize = 5;

/// Activations: rows of numbers of one of three types.
#[derive(Debug)]
pub struct Activations {
    /// The numbers' bytes.
    pub(super) bytes: Buffer<u8>,
    /// Their type.
    pub(super) kind: ActivationType,
}

impl Activations {
    /// Room for `rows` rows of `width` numbers, and for the padding.
    pub fn new(device: &Device, kind: ActivationType, rows: usize, width: usize) -> Result<Self, Error> {
        let bytes = device.buffer(rows.next_multiple_of(ROW_PADDING) * width * kind.bytes())?;
        Ok(Self { bytes, kind })
    }

    fn check(&self, rows: usize, width: usize) -> Result<(), Error> {
        let needed = rows.next_multiple_of(ROW_PADDING) * width * self.kind.bytes();
        check("bytes of activations", self.bytes.len(), self.bytes.len() >= needed, format_args!("at least {needed}"))
    }
}

pub(super) fn at_least<T: super::Element>(what: &'static str, slice: Slice<'_, T>, len: usize) -> Result<(), Error> {
    check(what, slice.len(), slice.len() >= len, format_args!("at least {len}"))
}

pub(super) fn int(value: usize) -> Arg {
    Arg::Int(i32::try_from(value).expect("sizes were checked to be far smaller"))
}

/// Heads of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key/value heads.
    pub kv: usize,
    /// Width of a head.
    pub dim: usize,
}

impl Heads {
    /// Numbers of a row of queries, keys and values.
    pub fn width(&self) -> usize {
        (self.query + 2 * self.kv) * self.dim
    }

    /// Numbers of a position in a cache of keys or values.
    pub fn kv_width(&self) -> usize {
        self.kv * self.dim
    }

    /// Whether kernels can work with them.
    pub fn check(&self) -> Result<(), Error> {
        let Self { query, kv, dim } = *self;
        check("query heads", query, kv > 0 && query.is_multiple_of(kv), format_args!("a multiple of {kv}"))?;
        let fits = dim > 0 && dim.is_multiple_of(8) && dim <= MAX_HEAD;
        check("head dimension", dim, fits, "a multiple of 8, at most 128")
    }
}

/// Keys and values of one layer: `[slot][kv head][dim]` each.
#[derive(Debug, Clone, Copy)]
pub struct LayerCache<'a> {
    /// Keys.
    pub keys: Slice<'a, u8>,
    /// Values.
    pub values: Slice<'a, u8>,
    /// Their type.
    pub dtype: KvDtype,
}

impl LayerCache<'_> {
    fn kind(&self) -> ActivationType {
        match self.dtype {
            KvDtype::F32 => ActivationType::F32,
            KvDtype::F16 => ActivationType::F16,
            KvDtype::Bf16 => ActivationType::Bf16,
        }
    }

    fn check(&self, inputs: &BatchInputs, heads: Heads) -> Result<(), Error> {
        let bytes = inputs.slots() * heads.kv_width() * self.dtype.bytes();
        at_least("bytes of keys", self.keys, bytes)?;
        at_least("bytes of values", self.values, bytes)
    }
}

/// What the kernel `rope_append` applies besides the rotation.
#[derive(Debug, Clone, Copy)]
pub struct RopeWeights<'a> {
    /// `[heads.width()]` (Qwen2).
    pub biases: Option<Slice<'a, f32>>,
    /// `[dim]` each, of queries and of keys (Qwen3).
    pub norms: Option<[Slice<'a, f32>; 2]>,
    /// Epsilon of the norms.
    pub eps: f32,
    /// `[positions, dim / 2]`.
    pub cos: Slice<'a, f32>,
    /// `[positions, dim / 2]`.
    pub sin: Slice<'a, f32>,
    /// Rotary pairs are neighbours instead of halves.
    pub interleaved: bool,
}

impl Device {
    /// `x[token] = table[token id]` for `count` tokens, `step` apart in `ids`, all of which are rows of `table`; rows of `x`
    /// are `stride` apart.
    pub(super) fn embed(
        &self,
        (ids, step, count): (Slice<'_, i32>, usize, usize),
        table: &DeviceMatrix,
        (x, stride): (Slice<'_, f32>, usize),
    ) -> Result<(), Error> {
        at_least("token ids", ids, count.saturating_sub(1) * step + usize::from(count > 0))?;
        check("stride of embeddings", stride, stride >= table.k, format_args!("at least {}", table.k))?;
        at_least("embeddings", x, if count == 0 { 0 } else { (count - 1) * stride + table.k })?;
        let [kernel, _] = table.kind.kernels();
        let (values, scales) = (table.values.all(), table.scales.all());
        let mut args = [ids.arg(), int(step), values.arg(), scales.arg(), x.arg(), int(table.k), int(stride)];
        // SAFETY: sizes were checked; the caller vouches for the ids.
        unsafe { self.launch(kernel, [count, 1, 1], THREADS, &mut args) }
    }

    /// Adds `delta` to the stream `x` where there is one, and writes norms of `count` rows to `out` and, if given, `plain`.
    /// `rows` are the rows of `x` to take, all of them in it; without, the first ones.
    pub(super) fn rms_norm(
        &self,
        (x, delta): (Slice<'_, f32>, Option<Slice<'_, f32>>),
        (rows, count): (Option<Slice<'_, i32>>, usize),
        (weight, eps): (Slice<'_, f32>, f32),
        out: &Activations,
        plain: Option<Slice<'_, f32>>,
    ) -> Result<(), Error> {
        let width = weight.len();
        out.check(count, width)?;
        match rows {
            Some(rows) => at_least("rows of a norm", rows, count)?,
            None => at_least("residual stream", x, count * width)?,
        }
        if let Some(delta) = delta {
            at_least("addend of the residual stream", delta, x.len())?;
        }
        if let Some(plain) = plain {
            at_least("norms", plain, count * width)?;
        }
        let mut args = [
            x.arg(),
            optional(delta),
            optional(rows),
            weight.arg(),
            Arg::Float(eps),
            out.bytes.all().arg(),
            Arg::Int(out.kind as i32),
            optional(plain),
            int(width),
        ];
        // SAFETY: all sizes were checked; the caller vouches for the ids of `rows`.
        unsafe { self.launch("rms_norm", [count, 1, 1], THREADS, &mut args) }
    }

    /// `x += delta + bias`, for rows of `width`.
    pub(super) fn add(
        &self,
        x: Slice<'_, f32>,
        delta: Option<Slice<'_, f32>>,
        bias: Option<Slice<'_, f32>>,
        width: usize,
    ) -> Result<(), Error> {
        for addend in delta.iter() {
            at_least("addend", *addend, x.len())?;
        }
        for bias in bias.iter() {
            at_least("bias", *bias, width)?;
        }
        let mut args = [x.arg(), optional(delta), optional(bias), int(width)];
        // SAFETY: all sizes were checked.
        unsafe { self.launch("add", [x.len() / width.max(1), 1, 1], THREADS, &mut args) }
    }

    /// `out = silu(gate) * up`; a row of `gates` is the gates and then the ups, `width` each.
    pub(super) fn silu_mul(&self, gates: Slice<'_, f32>, width: usize, out: &Activations) -> Result<(), Error> {
        let rows = gates.len() / (2 * width).max(1);
        out.check(rows, width)?;
        let mut args = [gates.arg(), out.bytes.all().arg(), Arg::Int(out.kind as i32), int(width)];
        // SAFETY: all sizes were checked.
        unsafe { self.launch("silu_mul", [rows, 1, 1], THREADS, &mut args) }
    }

    /// `out[row][n] = a[row] . w[n]` for `rows` rows; rows of `out` are `stride` numbers apart.
    pub fn multiply(
        &self,
        a: &Activations,
        w: &DeviceMatrix,
        rows: usize,
        (out, stride): (Slice<'_, f32>, usize),
    ) -> Result<(), Error> {
        a.check(rows, w.k)?;
        check("stride of a product", stride, stride >= w.n, format_args!("at least {}", w.n))?;
        at_least("product", out, if rows == 0 { 0 } else { (rows - 1) * stride + w.n })?;
        if a.kind == ActivationType::F32 {
            return self.multiply_plain(a.bytes.all().arg(), w, rows, (out, stride));
        }
        check("type of activations", a.kind as usize, a.kind == w.activation(), w.activation() as usize)?;
        let (tiles, kernel) = match (a.kind, rows) {
            (ActivationType::F16, ..=16) => (1, "gemm_tensor_f16_1"),
            (ActivationType::F16, 17..=32) => (2, "gemm_tensor_f16_2"),
            (ActivationType::F16, _) => (4, "gemm_tensor_f16_4"),
            (_, ..=16) => (1, "gemm_tensor_bf16_1"),
            (_, 17..=32) => (2, "gemm_tensor_bf16_2"),
            _ => (4, "gemm_tensor_bf16_4"),
        };
        let grid = [w.n / 16, rows.div_ceil(16 * tiles), 1];
        let mut args = [a.bytes.all().arg(), w.values.all().arg(), out.arg(), int(rows), int(w.k), int(stride)];
        // SAFETY: sizes were checked; `a` has rows up to a multiple of 64.
        unsafe { self.launch(kernel, grid, 256, &mut args) }
    }

    fn multiply_plain(
        &self,
        a: Arg,
        w: &DeviceMatrix,
        rows: usize,
        (out, stride): (Slice<'_, f32>, usize),
    ) -> Result<(), Error> {
        let [_, kernel] = w.kind.kernels();
        let (values, scales) = (w.values.all(), w.scales.all());
        let sizes = [int(rows), int(w.n), int(w.k), int(stride)];
        let mut args = [a, values.arg(), scales.arg(), out.arg(), sizes[0], sizes[1], sizes[2], sizes[3]];
        // SAFETY: `multiply` and `multiply_rows` checked all sizes.
        unsafe { self.launch(kernel, [w.n.div_ceil(16), rows.div_ceil(8), 1], 128, &mut args) }
    }

    /// As [`Self::multiply`], of `rows` rows of f32 activations `[rows, k]`.
    pub(super) fn multiply_rows(
        &self,
        a: Slice<'_, f32>,
        w: &DeviceMatrix,
        rows: usize,
        (out, stride): (Slice<'_, f32>, usize),
    ) -> Result<(), Error> {
        at_least("activations", a, rows * w.k)?;
        check("stride of a product", stride, stride >= w.n, format_args!("at least {}", w.n))?;
        at_least("product", out, if rows == 0 { 0 } else { (rows - 1) * stride + w.n })?;
        self.multiply_plain(a.arg(), w, rows, (out, stride))
    }

    /// Biases, head norms and rotation of `qkv`, `[tokens, heads.width()]`; keys and values go to the cache.
    pub(super) fn rope_append(
        &self,
        qkv: Slice<'_, f32>,
        inputs: &BatchInputs,
        weights: &RopeWeights<'_>,
        cache: LayerCache<'_>,
        heads: Heads,
    ) -> Result<(), Error> {
        heads.check()?;
        cache.check(inputs, heads)?;
        let tokens = inputs.tokens();
        at_least("queries, keys and values", qkv, tokens * heads.width())?;
        for table in [weights.cos, weights.sin] {
            at_least("rotary table", table, inputs.positions_limit() * heads.dim / 2)?;
        }
        for biases in weights.biases.iter() {
            at_least("biases", *biases, heads.width())?;
        }
        for norm in weights.norms.iter().flatten() {
            at_least("head norm", *norm, heads.dim)?;
        }
        let mut args = [
            qkv.arg(),
            optional(weights.biases),
            optional(weights.norms.map(|norms| norms[0])),
            optional(weights.norms.map(|norms| norms[1])),
            Arg::Float(weights.eps),
            inputs.positions().arg(),
            inputs.new_slots().arg(),
            weights.cos.arg(),
            weights.sin.arg(),
            cache.keys.arg(),
            cache.values.arg(),
            Arg::Int(cache.kind() as i32),
            int(heads.query),
            int(heads.kv),
            int(heads.dim),
            Arg::Int(i32::from(weights.interleaved)),
        ];
        let grid = [tokens, heads.query + 2 * heads.kv, 1];
        // SAFETY: all sizes were checked, and `inputs` its slots and positions.
        unsafe { self.launch("rope_append", grid, (heads.dim / 2).next_multiple_of(32), &mut args) }
    }

    /// Numbers that attention needs between its kernels for contexts of `splits` splits.
    pub fn partial_len(tokens: usize, splits: usize, heads: Heads) -> usize {
        tokens * heads.query * splits * (2 + heads.dim)
    }

    /// `out[token]` = attention of its queries over its context. With `partials` (as [`Self::partial_len`] says) blocks
    /// share long contexts, which suits few tokens; without, every token has its blocks. The results are the same bits.
    pub(super) fn attention(
        &self,
        qkv: Slice<'_, f32>,
        inputs: &BatchInputs,
        cache: LayerCache<'_>,
        (heads, partials): (Heads, Option<Slice<'_, f32>>),
        out: &Activations,
    ) -> Result<(), Error> {
        heads.check()?;
        cache.check(inputs, heads)?;
        let tokens = inputs.tokens();
        at_least("queries, keys and values", qkv, tokens * heads.width())?;
        out.check(tokens, heads.query * heads.dim)?;
        let scale = Arg::Float(1.0 / (heads.dim as f32).sqrt());
        let sizes = [int(heads.query), int(heads.kv), int(heads.dim)];
        let (out_arg, out_kind) = (out.bytes.all().arg(), Arg::Int(out.kind as i32));
        let mut args = vec![qkv.arg(), inputs.positions().arg(), inputs.rows().arg(), inputs.tables().arg()];
        args.extend([int(inputs.table_width()), int(inputs.block_size()), cache.keys.arg(), cache.values.arg()]);
        let groups = heads.kv * (heads.query / heads.kv).div_ceil(GROUP);
        let Some(partials) = partials else {
            args.extend([out_arg, out_kind, sizes[0], sizes[1], sizes[2], scale]);
            let kernel = match cache.dtype {
                KvDtype::F32 => "attention_extend_f32",
                KvDtype::F16 => "attention_extend_f16",
                KvDtype::Bf16 => "attention_extend_bf16",
            };
            // SAFETY: all sizes were checked, and `inputs` its tables.
            return unsafe { self.launch(kernel, [tokens, groups, 1], ATTENTION_THREADS, &mut args) };
        };
        let splits = inputs.positions_limit().div_ceil(ATTENTION_SPLIT);
        at_least("partial results", partials, Self::partial_len(tokens, splits, heads))?;
        args.extend([partials.arg(), int(splits), sizes[0], sizes[1], sizes[2], scale]);
        let kernel = match cache.dtype {
            KvDtype::F32 => "attention_decode_f32",
            KvDtype::F16 => "attention_decode_f16",
            KvDtype::Bf16 => "attention_decode_bf16",
        };
        let grid = [tokens, groups, splits.min(MAX_SPLIT_BLOCKS)];
        // SAFETY: all sizes were checked, and `inputs` its tables.
        unsafe { self.launch(kernel, grid, ATTENTION_THREADS, &mut args)? };
        let mut args = [partials.arg(), inputs.positions().arg(), out_arg, out_kind, int(splits), sizes[0], sizes[2]];
        // SAFETY: as above.
        unsafe { self.launch("attention_merge", [tokens, heads.query, 1], ATTENTION_THREADS, &mut args) }
    }

    /// Candidates and signals of rows of logits, `[rows, vocab]`: [`SIGNAL_WORDS`] words a row in `out`, and `top` logits
    /// and as many ids in `largest` (see `signals.cu`). Candidates are below `bound`; row `extra` of the head is no token.
    pub(super) fn logit_signals(
        &self,
        (logits, vocab): (Slice<'_, f32>, usize),
        (bound, extra): (usize, Option<u32>),
        (top, softmax): (usize, bool),
        (out, largest): (Slice<'_, u32>, Slice<'_, u32>),
    ) -> Result<(), Error> {
        check("largest logits", top, top <= MAX_TOP.min(vocab), format_args!("at most {}", MAX_TOP.min(vocab)))?;
        let rows = logits.len() / vocab.max(1);
        at_least("signals", out, rows * SIGNAL_WORDS)?;
        at_least("largest logits", largest, rows * 2 * top)?;
        let extra = match extra {
            Some(extra) => {
                check(
                    "extra row of the head",
                    extra as usize,
                    (extra as usize) < vocab,
                    format_args!("below {vocab}"),
                )?;
                int(extra as usize)
            }
            None => Arg::Int(-1),
        };
        let softmax = Arg::Int(i32::from(softmax));
        let sizes = [int(vocab), int(bound.min(vocab)), extra, int(top), softmax];
        let mut args = [logits.arg(), out.arg(), largest.arg(), sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]];
        // SAFETY: all sizes were checked.
        unsafe { self.launch("logit_signals", [rows, 1, 1], 512, &mut args) }
    }

    /// Fills a float matrix with numbers between -scale and scale that look random.
    pub fn fill(&self, matrix: &DeviceMatrix, seed: u32, scale: f32) -> Result<(), Error> {
        let kind = match matrix.kind {
            MatrixKind::F32 => ActivationType::F32,
            MatrixKind::F16 => ActivationType::F16,
            MatrixKind::Bf16 => ActivationType::Bf16,
            MatrixKind::Q8 | MatrixKind::Q4 => return Err(failed("matrix", "only floats can be random")),
        };
        let count = Arg::Size(matrix.n * matrix.k);
        let mut args =
            [matrix.values.all().arg(), Arg::Int(kind as i32), count, Arg::Int(seed.cast_signed()), Arg::Float(scale)];
        let blocks = (matrix.n * matrix.k).div_ceil(THREADS).min(4096);
        // SAFETY: `count` is what the matrix holds.
        unsafe { self.launch("fill", [blocks, 1, 1], THREADS, &mut args) }
    }

    /// Copies blocks within `caches`, several caches of `blocks` blocks after one another: `pairs` are from, to, from, ...
    pub(super) fn copy_blocks(
        &self,
        (caches, count): (Slice<'_, u8>, usize),
        blocks: usize,
        pairs: Slice<'_, i32>,
    ) -> Result<(), Error> {
        let block = caches.len() / (count * blocks).max(1);
        check("bytes of a KV block", block, block.is_multiple_of(16), "a multiple of 16")?;
        let mut args = [caches.arg(), pairs.arg(), Arg::Size(caches.len() / count.max(1) / 16), int(block / 16)];
        // SAFETY: the caller vouches for the ids of `pairs`.
        unsafe { self.launch("copy_blocks", [pairs.len() / 2, count, 1], THREADS, &mut args) }
    }
}
