//! The forward pass over a ragged batch on a device: the counterpart of [`crate::Decoder`].

use super::collective::Collective;
use super::driver::Graph;
use super::head::{CudaHead, HeadInputs};
use super::inputs::{BatchInputs, Limits};
use super::matrix::{ActivationType, DeviceMatrix};
use super::memory::{Buffer, Device, Slice};
use super::ops::{ATTENTION_SPLIT, Activations, Heads, LayerCache, MAX_TOP, RopeWeights, SIGNAL_WORDS};
use super::weights::{CudaLayer, CudaWeights};
use crate::{DecoderConfig, Error, KvDtype, RowInput, SignalSet, check};

/// Most bytes of partial results of attention; steps of more tokens do without.
const PARTIAL_BYTES: usize = 64 << 20;
/// Most tokens of a step whose long contexts are shared by blocks: more tokens fill a device by themselves.
const PARTIAL_TOKENS: usize = 64;

/// The most that a decoder has to work on at once, and its cache.
#[derive(Debug, Clone)]
pub struct CudaLimits {
    /// Most new tokens of a step.
    pub tokens: usize,
    /// Most rows of a step.
    pub rows: usize,
    /// KV blocks, and positions of a block.
    pub kv: (usize, usize),
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// Shapes for which steps are captured: tokens, and rows that sample. A step takes the smallest that holds it.
    pub graphs: Vec<(usize, usize)>,
}

/// What a step should give besides candidates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CudaNeeds {
    /// Signals of the softmax and the largest logits.
    pub signals: SignalSet,
    /// A row of the head that is no token.
    pub extra_row: Option<u32>,
    /// Candidates are below this.
    pub bound: usize,
    /// Whether the largest logits are copied to the host: not where only a routing head on the device reads them.
    pub top_on_host: bool,
}

/// What returns to the host after every step, for the rows that sample.
#[derive(Debug, Default)]
pub struct CudaOutput {
    /// Ids of the largest logits below the bound.
    pub candidates: Vec<u32>,
    /// Logits of the extra row; 0 without one.
    pub extra: Vec<f32>,
    /// Entropies in nats; 0 where not asked for.
    pub entropy: Vec<f32>,
    /// Logarithms of the sums of exponentials.
    pub log_sum_exp: Vec<f32>,
    /// `[rows, min(top_k, vocab)]`, falling, ties by rising id. Empty when the host does not want them.
    pub top: Vec<(f32, u32)>,
    /// Scores of the routing head. Empty without one.
    pub scores: Vec<f32>,
}

impl CudaOutput {
    fn clear(&mut self) {
        for part in [&mut self.extra, &mut self.entropy, &mut self.log_sum_exp, &mut self.scores] {
            part.clear();
        }
        self.candidates.clear();
        self.top.clear();
    }
}

/// How often steps were replayed from graphs, and how often not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GraphCounts {
    /// Steps that were one launch.
    pub hits: u64,
    /// Steps outside of every captured shape.
    pub misses: u64,
}

/// A model, or one rank's part of it, with its KV cache.
pub struct CudaDecoder {
    device: Device,
    config: DecoderConfig,
    limits: CudaLimits,
    heads: Heads,
    needs: CudaNeeds,
    weights: CudaWeights,
    head: Option<CudaHead>,
    /// Rotary tables.
    cos: Buffer<f32>,
    sin: Buffer<f32>,
    /// `[layer][keys, values][slot][kv head][dim]`.
    cache: Buffer<u8>,
    copies: Buffer<i32>,
    inputs: BatchInputs,
    work: Workspace,
    collective: Box<dyn Collective>,
    graphs: Vec<((usize, usize), Box<dyn Graph>)>,
    counts: GraphCounts,
    words: Vec<u32>,
}

impl std::fmt::Debug for CudaDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDecoder")
            .field("device", &self.device)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Buffers of a step, at fixed addresses.
#[derive(Debug)]
struct Workspace {
    x: Buffer<f32>,
    delta: Buffer<f32>,
    qkv: Buffer<f32>,
    gates: Buffer<f32>,
    /// What the next product reads.
    a: Activations,
    partials: Buffer<f32>,
    hidden: Buffer<f32>,
    logits: Buffer<f32>,
    signals: Buffer<u32>,
    largest: Buffer<u32>,
}

impl Workspace {
    fn new(device: &Device, c: &DecoderConfig, limits: &CudaLimits, kind: ActivationType) -> Result<Self, Error> {
        let heads = Heads { query: c.heads, kv: c.kv_heads, dim: c.head_dim };
        let (tokens, rows) = (limits.tokens, limits.rows);
        let widest = c.d_model.max(c.heads * c.head_dim).max(c.ffn);
        let partials = Device::partial_len(partial_tokens(c, heads), splits(c), heads);
        Ok(Self {
            x: device.buffer(tokens * c.d_model)?,
            delta: device.buffer(tokens * c.d_model)?,
            qkv: device.buffer(tokens * heads.width())?,
            gates: device.buffer(tokens * 2 * c.ffn)?,
            a: Activations::new(device, kind, tokens.max(rows), widest)?,
            partials: device.buffer(partials)?,
            hidden: device.buffer(rows * c.d_model)?,
            logits: device.buffer(rows * c.vocab)?,
            signals: device.buffer(rows * SIGNAL_WORDS)?,
            largest: device.buffer(rows * 2 * MAX_TOP)?,
        })
    }
}

impl Workspace {
    /// The words of the signals, of which the first of each row is an id.
    fn signals_as_ids(&self) -> Slice<'_, i32> {
        self.signals.all().as_ints()
    }
}

fn positions(config: &DecoderConfig) -> usize {
    config.cos.len() / (config.head_dim / 2)
}

fn splits(config: &DecoderConfig) -> usize {
    positions(config).div_ceil(ATTENTION_SPLIT)
}

fn partial_tokens(config: &DecoderConfig, heads: Heads) -> usize {
    (PARTIAL_BYTES / 4 / Device::partial_len(1, splits(config), heads).max(1)).clamp(1, PARTIAL_TOKENS)
}

impl CudaDecoder {
    /// Puts a model together, allocates its cache and buffers, and captures its graphs. `config` is this rank's share:
    /// its heads, and its part of the feed-forward layer.
    pub fn new(
        device: &Device,
        config: DecoderConfig,
        weights: CudaWeights,
        limits: CudaLimits,
        (needs, head): (CudaNeeds, Option<CudaHead>),
        collective: Box<dyn Collective>,
    ) -> Result<Self, Error> {
        let heads = Heads { query: config.heads, kv: config.kv_heads, dim: config.head_dim };
        heads.check()?;
        weights.check(&config, heads)?;
        if let Some(head) = &head {
            head.check(config.d_model, needs.signals.top_k.min(config.vocab), limits.rows)?;
        }
        let kind = weights.activation();
        let (blocks, block_size) = limits.kv;
        let inputs = Limits {
            tokens: limits.tokens,
            rows: limits.rows,
            vocab: config.vocab,
            positions: positions(&config),
            blocks,
            block_size,
        };
        let inputs = BatchInputs::new(device, inputs)?;
        let cache = 2 * weights.layers.len() * blocks * block_size * heads.kv_width() * limits.kv_dtype.bytes();
        let (cos, sin) = (device.upload(&config.cos)?, device.upload(&config.sin)?);
        let (work, cache) = (Workspace::new(device, &config, &limits, kind)?, device.buffer(cache)?);
        let copies = device.buffer(2 * limits.rows)?;
        let (graphs, counts, words) = (Vec::new(), GraphCounts::default(), Vec::new());
        let device = device.clone();
        let mut decoder = Self {
            device,
            config,
            limits,
            heads,
            needs,
            weights,
            head,
            cos,
            sin,
            cache,
            copies,
            inputs,
            work,
            collective,
            graphs,
            counts,
            words,
        };
        decoder.capture_graphs()?;
        Ok(decoder)
    }

    /// Bytes of weights that a step reads.
    pub fn weight_bytes(&self) -> usize {
        let layer = |layer: &CudaLayer| {
            let matrices = layer.qkv.iter().chain(&layer.gate_up).chain([&layer.output, &layer.down]);
            matrices.map(DeviceMatrix::bytes).sum::<usize>()
        };
        self.weights.layers.iter().map(layer).sum::<usize>() + self.output_matrix().bytes()
    }

    /// How often graphs were used.
    pub fn graph_counts(&self) -> GraphCounts {
        self.counts
    }

    /// A step of this rank failed: those of the others need not wait for it.
    pub fn abandon_group(&self) {
        self.collective.abandon();
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn output_matrix(&self) -> &DeviceMatrix {
        self.weights.head.as_ref().unwrap_or(&self.weights.embedding)
    }

    /// Runs every shape once, so that everything is loaded, then notes its launches.
    fn capture_graphs(&mut self) -> Result<(), Error> {
        let mut shapes = std::mem::take(&mut self.limits.graphs);
        shapes.retain(|(tokens, rows)| *tokens <= self.limits.tokens && *rows <= self.limits.rows && rows <= tokens);
        shapes.sort_unstable();
        shapes.dedup();
        if !self.collective.can_be_captured() {
            shapes.clear();
        }
        for shape in &shapes {
            self.inputs.set(&[], *shape)?;
            self.step()?;
            self.device.synchronize()?;
            let graph = self.device.capture(|| self.step())?;
            self.graphs.push((*shape, graph));
        }
        self.limits.graphs = shapes;
        Ok(())
    }

    /// One step: stores keys and values of all new tokens, after copying blocks from, to; replaces `out`.
    pub fn forward(
        &mut self,
        batch: &[RowInput<'_>],
        copies: &[(u32, u32)],
        out: &mut CudaOutput,
    ) -> Result<(), Error> {
        self.copy_blocks(copies)?;
        let shape = BatchInputs::shape_of(batch);
        // Sorted: the first that holds the step has the fewest tokens.
        let graph = self.graphs.iter().find(|((tokens, rows), _)| *tokens >= shape.0 && *rows >= shape.1);
        if let Some((padded, graph)) = graph {
            self.inputs.set(batch, *padded)?;
            self.counts.hits += 1;
            // SAFETY: every address in the graph is of a buffer of this decoder.
            unsafe { graph.launch()? };
        } else {
            self.inputs.set(batch, shape)?;
            self.counts.misses += 1;
            self.step()?;
        }
        if self.inputs.samples() == 0 {
            // Nothing is copied back, and the step should still have ended when it returns.
            self.device.synchronize()?;
        }
        self.read(out)
    }

    fn copy_blocks(&self, copies: &[(u32, u32)]) -> Result<(), Error> {
        let blocks = self.limits.kv.0;
        for (from, to) in copies {
            let worst = (*from).max(*to) as usize;
            check("KV block of a copy", worst, worst < blocks, format_args!("below {blocks}"))?;
        }
        for part in copies.chunks(self.limits.rows) {
            let pairs: Vec<i32> = part.iter().flat_map(|(from, to)| [*from as i32, *to as i32]).collect();
            self.copies.write(0, &pairs)?;
            let caches = (self.cache.all(), 2 * self.weights.layers.len());
            self.device.copy_blocks(caches, blocks, self.copies.slice(0..pairs.len()))?;
        }
        Ok(())
    }

    /// All launches of a step, for the batch in `inputs`.
    fn step(&self) -> Result<(), Error> {
        let (c, w, device) = (&self.config, &self.work, &self.device);
        let tokens = self.inputs.tokens();
        let x = w.x.slice(0..tokens * c.d_model);
        device.embed((self.inputs.ids(), 1, tokens), &self.weights.embedding, (x, c.d_model))?;
        // What is to be added to the residual stream; the next norm does so.
        let mut delta: Option<Slice<'_, f32>> = None;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            if let Some((weight, bias)) = &layer.patch {
                if delta.is_some() {
                    device.add(x, delta.take(), None, c.d_model)?;
                }
                device.multiply_rows(x, weight, tokens, (w.delta.all(), c.d_model))?;
                device.add(x, Some(w.delta.all()), Some(bias.all()), c.d_model)?;
            }
            device.rms_norm((x, delta), (None, tokens), (layer.attn_norm.all(), c.eps), &w.a, None)?;
            self.attend(index, layer)?;
            device.multiply(&w.a, &layer.output, tokens, (w.delta.all(), c.d_model))?;
            self.collective.all_reduce(&w.delta, tokens * c.d_model)?;
            device.rms_norm((x, Some(w.delta.all())), (None, tokens), (layer.ffn_norm.all(), c.eps), &w.a, None)?;
            let gates = w.gates.slice(0..tokens * 2 * c.ffn);
            for (part, matrix) in layer.gate_up.iter().enumerate() {
                let out = gates.slice((part * c.ffn).min(gates.len())..gates.len());
                device.multiply(&w.a, matrix, tokens, (out, 2 * c.ffn))?;
            }
            device.silu_mul(gates, c.ffn, &w.a)?;
            device.multiply(&w.a, &layer.down, tokens, (w.delta.all(), c.d_model))?;
            self.collective.all_reduce(&w.delta, tokens * c.d_model)?;
            delta = Some(w.delta.all());
        }
        self.finish(x, delta)
    }

    fn attend(&self, index: usize, layer: &CudaLayer) -> Result<(), Error> {
        let (c, w, heads, device) = (&self.config, &self.work, self.heads, &self.device);
        let tokens = self.inputs.tokens();
        let qkv = w.qkv.slice(0..tokens * heads.width());
        let mut column = 0;
        for matrix in &layer.qkv {
            let out = qkv.slice(column.min(qkv.len())..qkv.len());
            device.multiply(&w.a, matrix, tokens, (out, heads.width()))?;
            column += matrix.n();
        }
        let weights = RopeWeights {
            biases: layer.qkv_bias.as_ref().map(Buffer::all),
            norms: layer.qk_norm.as_ref().map(|norms| [norms[0].all(), norms[1].all()]),
            eps: c.eps,
            cos: self.cos.all(),
            sin: self.sin.all(),
            interleaved: c.rope_interleaved,
        };
        let cache = self.layer_cache(index);
        device.rope_append(qkv, &self.inputs, &weights, cache, heads)?;
        let partials = (tokens <= partial_tokens(c, heads)).then(|| w.partials.all());
        device.attention(qkv, &self.inputs, cache, (heads, partials), &w.a)
    }

    fn layer_cache(&self, layer: usize) -> LayerCache<'_> {
        let size = self.cache.len() / (2 * self.weights.layers.len());
        let part = |index: usize| self.cache.slice(index * size..(index + 1) * size);
        LayerCache { keys: part(2 * layer), values: part(2 * layer + 1), dtype: self.limits.kv_dtype }
    }

    /// From the residual stream to the signals of the rows that sample.
    fn finish(&self, x: Slice<'_, f32>, delta: Option<Slice<'_, f32>>) -> Result<(), Error> {
        let (c, w, device) = (&self.config, &self.work, &self.device);
        let rows = self.inputs.padded_samples();
        let norm = (self.weights.norm.all(), c.eps);
        // A row may be taken twice, as padding: the stream is complete before the norm, which then adds nothing.
        if delta.is_some() {
            device.add(x, delta, None, c.d_model)?;
        }
        let last = (Some(self.inputs.last_tokens()), rows);
        device.rms_norm((x, None), last, norm, &w.a, Some(w.hidden.all()))?;
        let logits = w.logits.slice(0..rows * c.vocab);
        device.multiply(&w.a, self.output_matrix(), rows, (logits, c.vocab))?;
        let CudaNeeds { signals, extra_row, bound, .. } = self.needs;
        let top = signals.top_k.min(c.vocab);
        let out = (w.signals.all(), w.largest.all());
        device.logit_signals((logits, c.vocab), (bound, extra_row), (top, signals.softmax), out)?;
        match &self.head {
            Some(head) => {
                head.score(device, &self.head_inputs((w.signals_as_ids(), SIGNAL_WORDS), rows), w.signals.all())
            }
            None => Ok(()),
        }
    }

    /// What a routing head looks at, for `rows` rows with candidates in `ids`.
    fn head_inputs<'a>(&'a self, ids: (Slice<'a, i32>, usize), rows: usize) -> HeadInputs<'a> {
        let largest = self.work.largest.all();
        HeadInputs {
            rows,
            hidden: self.work.hidden.all(),
            ids,
            embedding: &self.weights.embedding,
            largest,
            top: self.top(),
        }
    }

    /// Logits that are selected of each row.
    fn top(&self) -> usize {
        self.needs.signals.top_k.min(self.config.vocab)
    }

    /// Scores of the rows of the last step for these candidates instead of those that returned with it.
    pub fn score(&self, candidates: &[u32], scores: &mut Vec<f32>) -> Result<(), Error> {
        let rows = self.inputs.samples();
        check("candidates", candidates.len(), candidates.len() == rows, rows)?;
        self.check_tokens(candidates)?;
        scores.clear();
        let Some(head) = self.head.as_ref().filter(|_| rows > 0) else { return Ok(()) };
        let ids: Vec<i32> = candidates.iter().map(|token| *token as i32).collect();
        let ids = self.device.upload(&ids)?;
        head.score(&self.device, &self.head_inputs((ids.all(), 1), rows), self.work.signals.all())?;
        let mut words = vec![0; rows * SIGNAL_WORDS];
        self.work.signals.read(0, &mut words)?;
        scores.extend(words.chunks_exact(SIGNAL_WORDS).map(|row| f32::from_bits(row[SIGNAL_WORDS - 1])));
        Ok(())
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        let vocab = self.config.vocab;
        let bad = tokens.iter().find(|token| **token as usize >= vocab);
        bad.map_or(Ok(()), |token| check("token id", *token as usize, false, format_args!("below {vocab}")))
    }

    /// The small copies of a step: five words a row, and the largest logits where the host wants them.
    fn read(&mut self, out: &mut CudaOutput) -> Result<(), Error> {
        let (rows, top) = (self.inputs.samples(), if self.needs.top_on_host { self.top() } else { 0 });
        out.clear();
        self.words.resize(rows * SIGNAL_WORDS.max(2 * top), 0);
        let words = &mut self.words[..rows * SIGNAL_WORDS];
        self.work.signals.read(0, words)?;
        for row in words.chunks_exact(SIGNAL_WORDS) {
            out.candidates.push(row[0]);
            out.extra.push(f32::from_bits(row[1]));
            out.entropy.push(f32::from_bits(row[2]));
            out.log_sum_exp.push(f32::from_bits(row[3]));
            if self.head.is_some() {
                out.scores.push(f32::from_bits(row[4]));
            }
        }
        if top > 0 {
            let words = &mut self.words[..rows * 2 * top];
            self.work.largest.read(0, words)?;
            for row in words.chunks_exact(2 * top) {
                let (logits, ids) = row.split_at(top);
                out.top.extend(logits.iter().map(|bits| f32::from_bits(*bits)).zip(ids.iter().copied()));
            }
        }
        Ok(())
    }

    /// Logits of a row of the last step, `[vocab]`.
    pub fn logits(&self, row: usize, out: &mut [f32]) -> Result<(), Error> {
        let rows = self.inputs.samples();
        check("row of logits", row, row < rows, format_args!("below {rows}"))?;
        check("logits of a row", out.len(), out.len() == self.config.vocab, self.config.vocab)?;
        self.work.logits.read(row * self.config.vocab, out)
    }

    /// Hidden states of the last step, after the final norm: `[rows that sample, d_model]`.
    pub fn hidden(&self, out: &mut Vec<f32>) -> Result<(), Error> {
        out.resize(self.inputs.samples() * self.config.d_model, 0.0);
        self.work.hidden.read(0, out)
    }

    /// Input embeddings of tokens, `[tokens, d_model]`.
    pub fn embeddings(&self, tokens: &[u32], out: &mut Vec<f32>) -> Result<(), Error> {
        let (d, most) = (self.config.d_model, self.limits.tokens);
        out.resize(tokens.len() * d, 0.0);
        for (tokens, out) in tokens.chunks(most).zip(out.chunks_mut(most * d)) {
            self.check_tokens(tokens)?;
            let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
            let ids = self.device.upload(&ids)?;
            self.device.embed((ids.all(), 1, ids.len()), &self.weights.embedding, (self.work.x.all(), d))?;
            self.work.x.read(0, out)?;
        }
        Ok(())
    }
}
