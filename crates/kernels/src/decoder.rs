//! The forward pass of Llama, Qwen2 and Qwen3 models over a ragged batch.

mod step;

use std::sync::Arc;

use crate::attention::{MAX_GROUP, Norm};
use crate::signals;
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
    /// The tokens of the head's rows, ascending, where it covers a part of the vocabulary: all others have the logit
    /// `-inf`. Absent: row `i` is token `i`.
    pub head_tokens: Option<Vec<u32>>,
    /// Epsilon of the RMS norms.
    pub eps: f32,
    /// Rotary cosines, `[positions, head_dim / 2]`.
    pub cos: Vec<f32>,
    /// Rotary sines, `[positions, head_dim / 2]`.
    pub sin: Vec<f32>,
    /// Whether rotary pairs are neighbours instead of halves.
    pub rope_interleaved: bool,
}

/// Weights of a layer. Matrices are `[outputs, inputs]`.
#[derive(Debug)]
pub struct LayerWeights {
    /// Replaces the layers that were dropped before this one.
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

/// A linear map that is added to the residual stream, `x += weight x + bias`. It approximates what dropped layers add.
#[derive(Debug)]
pub struct Patch {
    /// `[d_model, d_model]`.
    pub weight: PackedMatrix,
    /// `[d_model]`.
    pub bias: Vec<f32>,
}

/// The part of one request in a step: new tokens at positions `start..`, and the blocks that cover them.
#[derive(Debug, Clone, Copy)]
pub struct RowInput<'a> {
    /// New tokens, at least one.
    pub tokens: &'a [u32],
    /// Position of the first.
    pub start: usize,
    /// KV blocks of all positions from 0 on.
    pub blocks: &'a [u32],
    /// Whether to compute logits after the last token.
    pub sample: bool,
}

/// Optional outputs of a step, in addition to logits, the largest logit and its id.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct StepNeeds {
    /// The hidden states that are the input of the output matrix.
    pub hidden: bool,
    /// The residual stream after the last layer.
    pub residual: bool,
    /// Signals of the softmax and the largest logits.
    pub signals: SignalSet,
    /// A row of the output matrix that is not a token. Its logit is reported in [`StepOutput::extra`], and counts as
    /// `-inf` everywhere else.
    pub extra_row: Option<u32>,
}

/// Results of a step, for the rows that sample; buffers are reused from step to step.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// `[rows, d_model]`: the input of the output matrix, after the final norm. Empty if not requested.
    pub hidden: Vec<f32>,
    /// `[rows, d_model]`: the residual stream, before the final norm. Empty if not requested.
    pub residual: Vec<f32>,
    /// Signals of every row.
    pub signals: Vec<LogitSignals>,
    /// `[rows, min(top_k, rows of the head)]`: logits in descending order with their ids; ties by ascending id.
    pub top: Vec<(f32, u32)>,
    /// `[rows]`: logits of the extra row. Empty if there is none.
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
    /// The layers that run, in order.
    selected: Vec<usize>,
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
    /// Logits of a head that covers a part of the vocabulary, `[rows, head rows]`.
    head_logits: Vec<f32>,
    signals: signals::Scratch,
    /// Weighted sums of values and their norms, of chunks of contexts.
    partial: (Vec<f32>, Vec<Norm>),
    /// Row index, position, per new token.
    places: Vec<(usize, usize)>,
    /// Where new tokens are stored in the cache.
    slots: Vec<usize>,
}

impl Decoder {
    /// Assembles a model and checks its shapes.
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
        check("number of heads", c.heads, grouped, format_args!("a multiple of {} kv heads", c.kv_heads))?;
        check(
            "query heads of a kv head",
            c.heads / c.kv_heads,
            c.heads / c.kv_heads <= MAX_GROUP,
            format_args!("at most {MAX_GROUP}"),
        )?;
        let matrix = |what, m: &PackedMatrix, n, k| {
            check(what, m.n(), m.n() == n, n).and_then(|()| check(what, m.k(), m.k() == k, k))
        };
        let vector = |what, v: &[f32], n: usize| check(what, v.len(), v.len() == n, n);
        matrix("embedding", &embedding, c.vocab, d)?;
        matrix("head", &head, c.head_tokens.as_ref().map_or(c.vocab, Vec::len), d)?;
        check_head_tokens(c)?;
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
        let selected = (0..layers.len()).collect();
        Ok(Self { config, isa, pool, embedding, layers, selected, norm, head, scratch: Scratch::default() })
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

    /// Runs only these layers of those that the model was built with, in order. Existing caches become invalid.
    pub fn select_layers(&mut self, layers: &[usize]) -> Result<(), Error> {
        let have = self.layers.len();
        for (place, layer) in layers.iter().enumerate() {
            check("selected layer", *layer, *layer < have, format!("below {have}"))?;
            check("selected layer", *layer, place == 0 || layers[place - 1] < *layer, "above the one before it")?;
        }
        self.selected = layers.to_vec();
        Ok(())
    }

    /// Replaces the patch before a layer.
    pub fn set_patch(&mut self, layer: usize, patch: Option<Patch>) -> Result<(), Error> {
        let (have, d) = (self.layers.len(), self.config.d_model);
        check("patched layer", layer, layer < have, format!("below {have}"))?;
        if let Some(patch) = &patch {
            for size in [patch.weight.n(), patch.weight.k(), patch.bias.len()] {
                check("size of a patch", size, size == d, d.to_string())?;
            }
        }
        self.layers[layer].patch = patch;
        Ok(())
    }

    /// The input embedding of `token`, dequantised.
    pub fn embedding_row(&self, token: u32, out: &mut [f32]) -> Result<(), Error> {
        check(
            "token id",
            token as usize,
            (token as usize) < self.config.vocab,
            format_args!("below {}", self.config.vocab),
        )?;
        check("width of an embedding", out.len(), out.len() == self.config.d_model, self.config.d_model)?;
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
        self.check_slots(rows, kv)?;
        if let Some(extra) = needs.extra_row {
            self.head_row(extra)?;
        }
        let mut s = std::mem::take(&mut self.scratch);
        let step = self.pool.step();
        let result = self.run(rows, kv, &mut s).and_then(|()| self.finish(rows, needs, out, &mut s));
        drop(step);
        self.scratch = s;
        result
    }

    /// The row of the head that belongs to a token.
    fn head_row(&self, token: u32) -> Result<usize, Error> {
        let vocab = self.config.vocab;
        let row = match &self.config.head_tokens {
            Some(tokens) => tokens.binary_search(&token).ok(),
            None => Some(token as usize).filter(|row| *row < vocab),
        };
        row.ok_or_else(|| Error::Shape {
            what: "extra row of the head",
            got: token as usize,
            expected: format!("one of the head's {} rows", self.head.n()),
        })
    }

    fn check_rows(&self, rows: &[RowInput<'_>], kv: &KvCache) -> Result<(), Error> {
        let c = &self.config;
        let shape = kv.shape();
        check("layers of a KV cache", kv.layers(), kv.layers() == self.layers.len(), self.layers.len())?;
        check("heads of a KV cache", shape.kv_heads, shape.kv_heads == c.kv_heads, c.kv_heads)?;
        check("head dimension of a KV cache", shape.head_dim, shape.head_dim == c.head_dim, c.head_dim)?;
        let positions = self.config.cos.len() / (self.config.head_dim / 2);
        for row in rows {
            let end = row.start + row.tokens.len();
            check("new tokens of a row", row.tokens.len(), !row.tokens.is_empty(), "at least 1")?;
            check("positions of a row", end, end <= positions, format_args!("at most {positions}"))?;
            let covered = row.blocks.len() * kv.block_size();
            check(
                "positions of a row",
                end,
                end <= covered,
                format_args!("at most {covered}, the length of its block table"),
            )?;
            if let Some(block) = row.blocks.iter().find(|block| **block as usize >= kv.blocks()) {
                check("KV block", *block as usize, false, format_args!("below {}", kv.blocks()))?;
            }
            if let Some(token) = row.tokens.iter().find(|token| **token as usize >= self.config.vocab) {
                check("token id", *token as usize, false, format_args!("below {}", self.config.vocab))?;
            }
        }
        Ok(())
    }

    /// Checks that new tokens have different places in the cache, because several threads store them at the same time.
    fn check_slots(&mut self, rows: &[RowInput<'_>], kv: &KvCache) -> Result<(), Error> {
        let (slots, size) = (&mut self.scratch.slots, kv.block_size());
        slots.clear();
        for row in rows {
            let positions = row.start..row.start + row.tokens.len();
            slots.extend(positions.map(|at| row.blocks[at / size] as usize * size + at % size));
        }
        slots.sort_unstable();
        match slots.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => check("KV block that two new tokens share a position of", pair[0] / size, false, "none"),
            None => Ok(()),
        }
    }
}

fn check_head_tokens(config: &DecoderConfig) -> Result<(), Error> {
    let Some(tokens) = &config.head_tokens else { return Ok(()) };
    check("tokens of the head", tokens.len(), !tokens.is_empty(), "at least 1")?;
    for (place, token) in tokens.iter().enumerate() {
        let token = *token as usize;
        check("token of the head", token, token < config.vocab, format_args!("below {}", config.vocab))?;
        let rises = place == 0 || (tokens[place - 1] as usize) < token;
        check("token of the head", token, rises, "above the one before it")?;
    }
    Ok(())
}
