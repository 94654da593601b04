//! The forward pass of Llama, Qwen2 and Qwen3 models over a ragged batch.

use std::sync::Arc;

use crate::matrix::{Columns, multiply_side_by_side};
use crate::ops::{rms_norm, rope, silu_mul};
use crate::pool::Shared;
use crate::quantize::Rows;
use crate::signals::{self, batch_signals};
use crate::{Activations, Error, Isa, KvCache, LogitSignals, PackedMatrix, Pool, SignalSet, check};

/// Shape and constants of a model.
#[derive(Debug, Clone)]
pub struct DecoderConfig {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head, even.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Epsilon of the RMS norms.
    pub eps: f32,
    /// Rotary cosines, `[positions, head_dim / 2]`.
    pub cos: Vec<f32>,
    /// Rotary sines, `[positions, head_dim / 2]`.
    pub sin: Vec<f32>,
    /// Rotary pairs are neighbours instead of halves.
    pub rope_interleaved: bool,
}

/// Weights of a layer. Matrices are `[outputs, inputs]`.
#[derive(Debug)]
pub struct LayerWeights {
    /// Stands in for layers that were dropped before this one.
    pub patch: Option<Patch>,
    /// `[d_model]`.
    pub attn_norm: Vec<f32>,
    /// `[heads * head_dim, d_model]`.
    pub q: PackedMatrix,
    /// `[kv_heads * head_dim, d_model]`.
    pub k: PackedMatrix,
    /// `[kv_heads * head_dim, d_model]`.
    pub v: PackedMatrix,
    /// Concatenated biases of q, k and v (Qwen2).
    pub qkv_bias: Option<Vec<f32>>,
    /// Norms of every q head and every k head, `[head_dim]` each (Qwen3).
    pub qk_norm: Option<[Vec<f32>; 2]>,
    /// `[d_model, heads * head_dim]`.
    pub output: PackedMatrix,
    /// `[d_model]`.
    pub ffn_norm: Vec<f32>,
    /// `[ffn, d_model]`.
    pub gate: PackedMatrix,
    /// `[ffn, d_model]`.
    pub up: PackedMatrix,
    /// `[d_model, ffn]`.
    pub down: PackedMatrix,
}

/// A linear map that is added to the residual stream, `x += weight x + bias`: roughly what dropped layers would add.
#[derive(Debug)]
pub struct Patch {
    /// `[d_model, d_model]`.
    pub weight: PackedMatrix,
    /// `[d_model]`.
    pub bias: Vec<f32>,
}

/// One request's part of a step: new tokens at positions `start..`, and the blocks that cover them.
#[derive(Debug, Clone, Copy)]
pub struct RowInput<'a> {
    /// New tokens, at least one.
    pub tokens: &'a [u32],
    /// Position of the first.
    pub start: usize,
    /// KV blocks of positions from 0 on.
    pub blocks: &'a [u32],
    /// Whether logits after the last token are wanted.
    pub sample: bool,
}

/// What a step should give besides logits, the largest logit and its id.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct StepNeeds {
    /// The hidden states that the head gets.
    pub hidden: bool,
    /// Signals of the softmax and the largest logits.
    pub signals: SignalSet,
    /// A row of the head that is no token. Its logit is reported in [`StepOutput::extra`] and is `-inf` for everything
    /// else.
    pub extra_row: Option<u32>,
}

/// Results of a step, for the rows that sample; buffers are reused from step to step.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// `[rows, d_model]`: what the head gets, after the final norm. Empty when not asked for.
    pub hidden: Vec<f32>,
    /// Signals of every row.
    pub signals: Vec<LogitSignals>,
    /// `[rows, min(top_k, vocab)]`: logits and ids, falling, ties by rising id.
    pub top: Vec<(f32, u32)>,
    /// `[rows]`: logits of the extra row. Empty when there is none.
    pub extra: Vec<f32>,
}

/// A model. `forward` computes steps over a cache.
#[derive(Debug)]
pub struct Decoder {
    config: DecoderConfig,
    isa: Isa,
    pool: Pool,
    embedding: Arc<PackedMatrix>,
    layers: Vec<LayerWeights>,
    norm: Vec<f32>,
    head: Arc<PackedMatrix>,
    scratch: Scratch,
}

/// Buffers that are reused from step to step; they only grow.
#[derive(Debug, Default)]
struct Scratch {
    x: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    gate_up: Vec<f32>,
    gated: Vec<f32>,
    quantized: Activations,
    signals: signals::Scratch,
    /// Row index, position, per new token.
    places: Vec<(usize, usize)>,
}

impl Decoder {
    /// Puts a model together; shapes are checked.
    pub fn new(
        config: DecoderConfig,
        (isa, pool): (Isa, Pool),
        embedding: Arc<PackedMatrix>,
        layers: Vec<LayerWeights>,
        norm: Vec<f32>,
        head: Arc<PackedMatrix>,
    ) -> Result<Self, Error> {
        isa.check()?;
        let c = &config;
        let (d, q, kv) = (c.d_model, c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let grouped = c.kv_heads > 0 && c.heads.is_multiple_of(c.kv_heads);
        check("number of heads", c.heads, grouped, format!("a multiple of {} kv heads", c.kv_heads))?;
        let matrix = |what, m: &PackedMatrix, n, k| {
            check(what, m.n(), m.n() == n, n.to_string()).and_then(|()| check(what, m.k(), m.k() == k, k.to_string()))
        };
        let vector = |what, v: &[f32], n: usize| check(what, v.len(), v.len() == n, n.to_string());
        matrix("embedding", &embedding, c.vocab, d)?;
        matrix("head", &head, c.vocab, d)?;
        vector("final norm", &norm, d)?;
        vector("rotary sines", &c.sin, c.cos.len())?;
        for layer in &layers {
            vector("attention norm", &layer.attn_norm, d)?;
            vector("feed-forward norm", &layer.ffn_norm, d)?;
            matrix("q", &layer.q, q, d)?;
            matrix("k", &layer.k, kv, d)?;
            matrix("v", &layer.v, kv, d)?;
            matrix("attention output", &layer.output, d, q)?;
            matrix("gate", &layer.gate, c.ffn, d)?;
            matrix("up", &layer.up, c.ffn, d)?;
            matrix("down", &layer.down, d, c.ffn)?;
            if let Some(patch) = &layer.patch {
                matrix("patch", &patch.weight, d, d)?;
                vector("bias of a patch", &patch.bias, d)?;
            }
            if let Some(bias) = &layer.qkv_bias {
                vector("qkv bias", bias, q + 2 * kv)?;
            }
            for norm in layer.qk_norm.iter().flatten() {
                vector("head norm", norm, c.head_dim)?;
            }
        }
        Ok(Self { config, isa, pool, embedding, layers, norm, head, scratch: Scratch::default() })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Bytes of weights that a step reads.
    pub fn weight_bytes(&self) -> usize {
        let layer = |l: &LayerWeights| {
            [&l.q, &l.k, &l.v, &l.output, &l.gate, &l.up, &l.down].iter().map(|m| m.bytes()).sum::<usize>()
        };
        self.layers.iter().map(layer).sum::<usize>() + self.head.bytes()
    }

    /// The input embedding of `token`, dequantised.
    pub fn embedding_row(&self, token: u32, out: &mut [f32]) -> Result<(), Error> {
        check(
            "token id",
            token as usize,
            (token as usize) < self.config.vocab,
            format!("below {}", self.config.vocab),
        )?;
        check("width of an embedding", out.len(), out.len() == self.config.d_model, self.config.d_model.to_string())?;
        self.embedding.row(token as usize, out);
        Ok(())
    }

    /// One step. Stores keys and values of all new tokens; replaces `out`.
    pub fn forward(
        &mut self,
        rows: &[RowInput<'_>],
        kv: &mut KvCache,
        needs: StepNeeds,
        out: &mut StepOutput,
    ) -> Result<(), Error> {
        self.check_rows(rows, kv)?;
        if let Some(extra) = needs.extra_row {
            let vocab = self.config.vocab;
            check("extra row of the head", extra as usize, (extra as usize) < vocab, format!("below {vocab}"))?;
        }
        let mut s = std::mem::take(&mut self.scratch);
        let step = self.pool.step();
        let result = self.run(rows, kv, &mut s).and_then(|()| self.finish(rows, needs, out, &mut s));
        drop(step);
        self.scratch = s;
        result
    }

    fn check_rows(&self, rows: &[RowInput<'_>], kv: &KvCache) -> Result<(), Error> {
        let positions = self.config.cos.len() / (self.config.head_dim / 2);
        for row in rows {
            let end = row.start + row.tokens.len();
            check("new tokens of a row", row.tokens.len(), !row.tokens.is_empty(), "at least 1")?;
            check("positions of a row", end, end <= positions, format!("at most {positions}"))?;
            let covered = row.blocks.len() * kv.block_size;
            check(
                "positions of a row",
                end,
                end <= covered,
                format!("at most {covered}, the length of its block table"),
            )?;
            if let Some(block) = row.blocks.iter().find(|block| **block as usize >= kv.blocks()) {
                check("KV block", *block as usize, false, format!("below {}", kv.blocks()))?;
            }
            if let Some(token) = row.tokens.iter().find(|token| **token as usize >= self.config.vocab) {
                check("token id", *token as usize, false, format!("below {}", self.config.vocab))?;
            }
        }
        Ok(())
    }

    /// All layers.
    fn run(&self, rows: &[RowInput<'_>], kv: &mut KvCache, s: &mut Scratch) -> Result<(), Error> {
        let c = &self.config;
        let d = c.d_model;
        s.places.clear();
        for (index, row) in rows.iter().enumerate() {
            s.places.extend((row.start..row.start + row.tokens.len()).map(|position| (index, position)));
        }
        let total = s.places.len();
        let width = (c.heads + 2 * c.kv_heads) * c.head_dim;
        for (buffer, width) in [
            (&mut s.x, d),
            (&mut s.normed, d),
            (&mut s.qkv, width),
            (&mut s.attended, c.heads * c.head_dim),
            (&mut s.gate_up, 2 * c.ffn),
            (&mut s.gated, c.ffn),
        ] {
            buffer.resize(total * width, 0.0);
        }
        let tokens = rows.iter().flat_map(|row| row.tokens);
        for (token, x) in tokens.zip(s.x.chunks_exact_mut(d)) {
            self.embedding.row(*token as usize, x);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            if let Some(patch) = &layer.patch {
                self.patch(patch, s)?;
            }
            let qkv = [&layer.q, &layer.k, &layer.v];
            self.norm(&s.x, &layer.attn_norm, &qkv, (&mut s.normed, &mut s.quantized))?;
            self.product(&qkv, (&s.normed, &s.quantized), &mut s.qkv, false)?;
            self.rotate(layer, &s.places, &mut s.qkv);
            self.attend(index, rows, &s.places, &s.qkv, kv, &mut s.attended);
            self.prepare(&[&layer.output], (&mut s.attended, &mut s.quantized), |_, _| {})?;
            self.product(&[&layer.output], (&s.attended, &s.quantized), &mut s.x, true)?;
            let gate_up = [&layer.gate, &layer.up];
            self.norm(&s.x, &layer.ffn_norm, &gate_up, (&mut s.normed, &mut s.quantized))?;
            self.product(&gate_up, (&s.normed, &s.quantized), &mut s.gate_up, false)?;
            let (isa, ffn, gate_up) = (self.isa, c.ffn, &s.gate_up);
            self.prepare(&[&layer.down], (&mut s.gated, &mut s.quantized), |row, out| {
                silu_mul(isa, &gate_up[row * 2 * ffn..(row + 1) * 2 * ffn], ffn, out);
            })?;
            self.product(&[&layer.down], (&s.gated, &s.quantized), &mut s.x, true)?;
        }
        Ok(())
    }

    fn patch(&self, patch: &Patch, s: &mut Scratch) -> Result<(), Error> {
        let d = self.config.d_model;
        let x = &s.x;
        self.prepare(&[&patch.weight], (&mut s.normed, &mut s.quantized), |row, out| {
            out.copy_from_slice(&x[row * d..(row + 1) * d]);
        })?;
        self.product(&[&patch.weight], (&s.normed, &s.quantized), &mut s.x, true)?;
        for x in s.x.chunks_exact_mut(d) {
            x.iter_mut().zip(&patch.bias).for_each(|(x, b)| *x += b);
        }
        Ok(())
    }

    /// Logits of the last new token of every row that wants them, and what is read from them.
    fn finish(
        &self,
        rows: &[RowInput<'_>],
        needs: StepNeeds,
        out: &mut StepOutput,
        s: &mut Scratch,
    ) -> Result<(), Error> {
        let (d, vocab) = (self.config.d_model, self.config.vocab);
        let mut end = 0;
        let mut count = 0;
        for row in rows {
            end += row.tokens.len();
            if row.sample {
                // A row never moves behind its place.
                s.x.copy_within((end - 1) * d..end * d, count * d);
                count += 1;
            }
        }
        out.logits.resize(count * vocab, 0.0);
        out.hidden.clear();
        out.extra.clear();
        if count > 0 {
            let normed = &mut s.normed[..count * d];
            self.norm(&s.x[..count * d], &self.norm, &[&self.head], (normed, &mut s.quantized))?;
            self.product(&[&self.head], (&s.normed[..count * d], &s.quantized), &mut out.logits, false)?;
        }
        if needs.hidden {
            out.hidden.extend_from_slice(&s.normed[..count * d]);
        }
        if let Some(extra) = needs.extra_row {
            let logits = out.logits.iter_mut().skip(extra as usize).step_by(vocab);
            out.extra.extend(logits.map(|logit| std::mem::replace(logit, f32::NEG_INFINITY)));
        }
        let results = (&mut out.signals, &mut out.top);
        batch_signals((self.isa, &self.pool), (&out.logits, vocab), needs.signals, &mut s.signals, results);
        Ok(())
    }

    fn norm(
        &self,
        x: &[f32],
        weight: &[f32],
        matrices: &[&PackedMatrix],
        out: (&mut [f32], &mut Activations),
    ) -> Result<(), Error> {
        let d = weight.len();
        self.prepare(matrices, out, |row, out| {
            rms_norm(self.isa, &x[row * d..(row + 1) * d], weight, self.config.eps, out);
        })
    }

    /// Calls `make(row, values)` for all rows of `x`, and quantises them if products with `matrices` ask for it.
    fn prepare(
        &self,
        matrices: &[&PackedMatrix],
        (x, quantized): (&mut [f32], &mut Activations),
        make: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<(), Error> {
        let width = matrices[0].k();
        let rows = x.len() / width;
        let wanted = matrices.iter().any(|matrix| matrix.is_quantized());
        let quantized = wanted.then(|| Rows::new(quantized, rows, width)).transpose()?;
        let shared = Shared::new(x);
        self.pool.split(rows, |range| {
            for row in range {
                // SAFETY: ranges of `split` are disjoint, and so are the rows.
                let x = unsafe { shared.part(row * width..(row + 1) * width) };
                make(row, x);
                if let Some(quantized) = &quantized {
                    // SAFETY: as above.
                    unsafe { quantized.quantize(self.isa, row, x) };
                }
            }
        });
        Ok(())
    }

    /// Products of the same rows with several matrices, side by side in `out`.
    fn product(
        &self,
        matrices: &[&PackedMatrix],
        inputs: (&[f32], &Activations),
        out: &mut [f32],
        add: bool,
    ) -> Result<(), Error> {
        let stride = matrices.iter().map(|matrix| matrix.n()).sum();
        multiply_side_by_side(matrices, self.isa, &self.pool, inputs, out, Columns { stride, offset: 0, add })
    }

    /// Biases, head norms and rotary embedding of q and k.
    fn rotate(&self, layer: &LayerWeights, places: &[(usize, usize)], qkv: &mut [f32]) {
        let c = &self.config;
        let (dim, half) = (c.head_dim, c.head_dim / 2);
        let width = (c.heads + 2 * c.kv_heads) * dim;
        let shared = Shared::new(qkv);
        self.pool.split(places.len(), |range| {
            for index in range {
                // SAFETY: ranges of `split` are disjoint, and so are the rows.
                let row = unsafe { shared.part(index * width..(index + 1) * width) };
                if let Some(bias) = &layer.qkv_bias {
                    row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
                }
                let position = places[index].1;
                let (cos, sin) = (&c.cos[position * half..][..half], &c.sin[position * half..][..half]);
                for (number, head) in row.chunks_exact_mut(dim).take(c.heads + c.kv_heads).enumerate() {
                    if let Some([q_norm, k_norm]) = &layer.qk_norm {
                        let mut normed = [0f32; 256];
                        let weight = if number < c.heads { q_norm } else { k_norm };
                        rms_norm(self.isa, head, weight, c.eps, &mut normed[..dim]);
                        head.copy_from_slice(&normed[..dim]);
                    }
                    rope(head, cos, sin, c.rope_interleaved);
                }
            }
        });
    }

    /// Stores the new keys and values, then attends: one task per new token and kv head.
    #[allow(clippy::too_many_arguments, reason = "the buffers of a step, one by one")]
    fn attend(
        &self,
        layer: usize,
        rows: &[RowInput<'_>],
        places: &[(usize, usize)],
        qkv: &[f32],
        kv: &mut KvCache,
        out: &mut [f32],
    ) {
        let c = &self.config;
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        for ((row, position), qkv) in places.iter().zip(qkv.chunks_exact(q_width + 2 * kv_width)) {
            let (k, v) = qkv[q_width..].split_at(kv_width);
            kv.append(layer, rows[*row].blocks, *position, k, v);
        }
        let kv = &*kv;
        let group = q_width / c.kv_heads;
        let shared = Shared::new(out);
        self.pool.split(places.len() * c.kv_heads, |range| {
            let mut scores = Vec::new();
            for task in range {
                let (index, head) = (task / c.kv_heads, task % c.kv_heads);
                let (row, position) = places[index];
                let start = index * (q_width + 2 * kv_width) + head * group;
                let at = index * q_width + head * group;
                // SAFETY: every task writes its own heads of its own token.
                let out = unsafe { shared.part(at..at + group) };
                let place = (layer, head);
                kv.attend(
                    self.isa,
                    place,
                    rows[row].blocks,
                    position + 1,
                    (&qkv[start..start + group], out),
                    &mut scores,
                );
            }
        });
    }
}
