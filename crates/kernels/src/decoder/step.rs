//! The passes over a batch: every operation of a step, in order, each split over the pool.

use super::{Decoder, LayerWeights, Patch, RowInput, Scratch, StepNeeds, StepOutput};
use crate::attention::{self, MAX_GROUP, Norm, Query};
use crate::matrix::{Columns, multiply_side_by_side};
use crate::ops::{rms_norm, rope, silu_mul};
use crate::pool::Shared;
use crate::quantize::Rows;
use crate::signals::batch_signals;
use crate::{Activations, Error, KvCache, PackedMatrix};

/// Rows that a thread prepares together. Quantised rows are adjacent in memory, and two cores that write to the same
/// cache line slow each other down.
const TOGETHER: usize = 4;

impl Decoder {
    /// Runs all layers.
    pub(super) fn run(&self, rows: &[RowInput<'_>], kv: &mut KvCache, s: &mut Scratch) -> Result<(), Error> {
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
        for (index, layer) in self.selected.iter().enumerate() {
            let layer = &self.layers[*layer];
            if let Some(patch) = &layer.patch {
                self.patch(patch, s)?;
            }
            let qkv = [&layer.q, &layer.k, &layer.v];
            self.norm(&s.x, &layer.attn_norm, &qkv, (&mut s.normed, &mut s.quantized))?;
            self.product(&qkv, (&s.normed, &s.quantized), &mut s.qkv, false)?;
            self.rotate((index, layer), (rows, &s.places), kv, &mut s.qkv);
            let chunks = self.attend(index, (rows, &s.places), (&s.qkv, kv), &mut s.attended, &mut s.partial);
            let partial = &s.partial;
            self.prepare(&[&layer.output], (&mut s.attended, &mut s.quantized), |index, out| {
                self.join(chunks, index, partial, out);
            })?;
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

    /// Computes the logits of the last new token of every row that needs them, and the signals derived from them.
    pub(super) fn finish(
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
                // A row only moves towards the front.
                s.x.copy_within((end - 1) * d..end * d, count * d);
                count += 1;
            }
        }
        out.hidden.clear();
        out.residual.clear();
        out.extra.clear();
        // A head for a part of the vocabulary: signals are taken where its logits are dense, then these are spread.
        let head = self.head.n();
        let tokens = self.config.head_tokens.as_deref();
        let mut part = std::mem::take(&mut s.head_logits);
        let logits = if tokens.is_some() { &mut part } else { &mut out.logits };
        logits.resize(count * head, 0.0);
        if count > 0 {
            let normed = &mut s.normed[..count * d];
            self.norm(&s.x[..count * d], &self.norm, &[&self.head], (normed, &mut s.quantized))?;
            self.product(&[&self.head], (&s.normed[..count * d], &s.quantized), logits, false)?;
        }
        if needs.residual {
            out.residual.extend_from_slice(&s.x[..count * d]);
        }
        if needs.hidden {
            out.hidden.extend_from_slice(&s.normed[..count * d]);
        }
        if let Some(extra) = needs.extra_row {
            let logits = logits.iter_mut().skip(self.head_row(extra)?).step_by(head);
            out.extra.extend(logits.map(|logit| std::mem::replace(logit, f32::NEG_INFINITY)));
        }
        let results = (&mut out.signals, &mut out.top);
        batch_signals((self.isa, &self.pool), (logits, head), needs.signals, &mut s.signals, results);
        if let Some(tokens) = tokens {
            spread((&part, tokens), vocab, out);
        }
        s.head_logits = part;
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

    /// Calls `make(row, values)` for all rows of `x`, and quantises the rows if products with `matrices` need it.
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
        self.pool.split_light(rows.div_ceil(TOGETHER), TOGETHER * width, |range| {
            for row in range.start * TOGETHER..rows.min(range.end * TOGETHER) {
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

    /// Multiplies the same rows with several matrices. The products are adjacent in `out`.
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

    /// Applies biases, head norms and rotary embedding to q and k, and stores the new keys and values.
    fn rotate(
        &self,
        (number, layer): (usize, &LayerWeights),
        (rows, places): (&[RowInput<'_>], &[(usize, usize)]),
        kv: &mut KvCache,
        qkv: &mut [f32],
    ) {
        let c = &self.config;
        let (dim, half) = (c.head_dim, c.head_dim / 2);
        let width = (c.heads + 2 * c.kv_heads) * dim;
        let shared = Shared::new(qkv);
        let writer = kv.writer(number);
        self.pool.split_light(places.len(), width, |range| {
            for index in range {
                // SAFETY: ranges of `split` are disjoint, and so are the rows.
                let qkv = unsafe { shared.part(index * width..(index + 1) * width) };
                if let Some(bias) = &layer.qkv_bias {
                    qkv.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
                }
                let (row, position) = places[index];
                let (cos, sin) = (&c.cos[position * half..][..half], &c.sin[position * half..][..half]);
                for (number, head) in qkv.chunks_exact_mut(dim).take(c.heads + c.kv_heads).enumerate() {
                    if let Some([q_norm, k_norm]) = &layer.qk_norm {
                        let mut normed = [0f32; 256];
                        let weight = if number < c.heads { q_norm } else { k_norm };
                        rms_norm(self.isa, head, weight, c.eps, &mut normed[..dim]);
                        head.copy_from_slice(&normed[..dim]);
                    }
                    rope(head, cos, sin, c.rope_interleaved);
                }
                let (k, v) = qkv[c.heads * dim..].split_at(c.kv_heads * dim);
                // SAFETY: `check_slots` found that no two tokens share a place.
                unsafe { writer.append(self.isa, rows[row].blocks, position, k, v) };
            }
        });
    }

    /// Computes the attention of all new tokens. There is one task per token and kv head, or, if those are too few for
    /// the threads, one task per chunk of their contexts. Returns the number of chunks that remain to be combined, or
    /// 0.
    fn attend(
        &self,
        layer: usize,
        (rows, places): (&[RowInput<'_>], &[(usize, usize)]),
        (qkv, kv): (&[f32], &KvCache),
        out: &mut [f32],
        (sums, norms): &mut (Vec<f32>, Vec<Norm>),
    ) -> usize {
        let c = &self.config;
        let (heads, q_width) = (c.heads / c.kv_heads, c.heads * c.head_dim);
        let (width, group) = (q_width + 2 * c.kv_heads * c.head_dim, heads * c.head_dim);
        let query = |task: usize| {
            let (index, kv_head) = (task / c.kv_heads, task % c.kv_heads);
            let (row, position) = places[index];
            let q = &qkv[index * width + kv_head * group..][..group];
            Query { layer, kv_head, q, blocks: rows[row].blocks, length: position + 1 }
        };
        let tasks = places.len() * c.kv_heads;
        let most = places.iter().map(|(_, position)| attention::chunks(position + 1)).max().unwrap_or(0);
        if most < 2 || tasks >= self.pool.tasks_wanted() {
            let shared = Shared::new(out);
            self.pool.split(tasks, |range| {
                for task in range {
                    let (query, mut norms) = (query(task), [Norm::default(); MAX_GROUP]);
                    // SAFETY: every task writes its own heads of its own token, which follow those of the task before.
                    let out = unsafe { shared.part(task * group..(task + 1) * group) };
                    kv.attend(self.isa, query, 0..attention::chunks(query.length), (out, &mut norms[..heads]));
                    attention::finish(self.isa, out, &norms[..heads]);
                }
            });
            return 0;
        }
        sums.resize((tasks * most * group).max(sums.len()), 0.0);
        norms.resize((tasks * most * heads).max(norms.len()), Norm::default());
        let (sums, norms) = (Shared::new(sums), Shared::new(norms));
        self.pool.split(tasks * most, |range| {
            for part in range {
                let (query, chunk) = (query(part / most), part % most);
                // SAFETY: ranges of `split` are disjoint, and so are the parts.
                let (sums, norms) = unsafe {
                    (sums.part(part * group..(part + 1) * group), norms.part(part * heads..(part + 1) * heads))
                };
                norms.fill(Norm::default());
                if chunk < attention::chunks(query.length) {
                    kv.attend(self.isa, query, chunk..chunk + 1, (sums, norms));
                }
            }
        });
        most
    }

    /// Combines the chunks that `attend` left, for all heads of a token.
    fn join(&self, chunks: usize, index: usize, (sums, norms): &(Vec<f32>, Vec<Norm>), out: &mut [f32]) {
        let c = &self.config;
        let heads = c.heads / c.kv_heads;
        let group = heads * c.head_dim;
        if chunks > 0 {
            for (head, out) in out.chunks_exact_mut(group).enumerate() {
                let first = (index * c.kv_heads + head) * chunks;
                let parts = first..first + chunks;
                let sums = &sums[parts.start * group..parts.end * group];
                attention::join(self.isa, sums, &norms[parts.start * heads..parts.end * heads], out);
            }
        }
    }
}

/// From rows of the head to tokens: `out.logits` is made, and the ids of its signals are changed. The tokens ascend, so
/// that ties stay in order.
fn spread((part, tokens): (&[f32], &[u32]), vocab: usize, out: &mut StepOutput) {
    out.logits.clear();
    out.logits.resize(part.len() / tokens.len() * vocab, f32::NEG_INFINITY);
    for (part, logits) in part.chunks_exact(tokens.len()).zip(out.logits.chunks_exact_mut(vocab)) {
        for (logit, token) in part.iter().zip(tokens) {
            logits[*token as usize] = *logit;
        }
    }
    for signals in &mut out.signals {
        signals.argmax = tokens[signals.argmax as usize];
    }
    for (_, id) in &mut out.top {
        *id = tokens[*id as usize];
    }
}
