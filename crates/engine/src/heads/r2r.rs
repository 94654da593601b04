//! R2R's classifier (arXiv 2505.21600): projections of hidden state, candidate embedding and largest logits, then
//! residual blocks.

use std::sync::{Mutex, PoisonError};

use tokenrouter_kernels::cuda::HostHead;

use super::layers::{
    Cpu, LayerNorm, Linear, OutputRow, Reader, check_rows, gelu, rows, rows_to_host, sigmoid, softmax,
};
use super::{HeadError, HeadFile, HeadProblem};
use tokenrouter_core::routing::HeadSizes;

/// Rows that are worked on at a time: bounds the scratch memory.
const ROWS: usize = 64;
/// Most blocks accepted; the published heads have 6.
const MAX_BLOCKS: usize = 64;

/// What the head looks at: one row per request.
#[derive(Debug, Clone, Copy)]
pub struct R2rInputs<'a> {
    /// Last hidden state after the final norm, at the position that predicts the candidate: `[n, hidden]`.
    pub hidden: &'a [f32],
    /// Input embedding of the candidate token: `[n, embedding]`.
    pub embedding: &'a [f32],
    /// The largest raw logits, falling: `[n, top_logits]`.
    pub logits: &'a [f32],
}

/// R2R's classifier. Scores are the probability that the candidate diverges from what the large model would write; a
/// token goes to the large model when `score >= threshold`.
#[derive(Debug)]
pub struct R2rHead {
    sizes: HeadSizes,
    threshold: Option<f64>,
    /// Norms of hidden state and embedding, where the head normalises its inputs.
    input_norms: Option<(LayerNorm, LayerNorm)>,
    logits_projection: Linear,
    combined_projection: Linear,
    input_projection: Linear,
    blocks: Vec<Block>,
    output_norm: LayerNorm,
    /// One output, or three classes of which the last is divergence.
    outputs: Vec<OutputRow>,
    cpu: Cpu,
    scratch: Mutex<Scratch>,
}

/// `x + W2 gelu(W1 norm(x))`; where the widths differ, a matrix carries `x` over.
#[derive(Debug)]
struct Block {
    norm: LayerNorm,
    widen: Linear,
    narrow: Linear,
    change: Option<Linear>,
}

/// Memory reused from call to call.
#[derive(Debug, Default)]
struct Scratch {
    logits: Vec<f32>,
    combined: Vec<f32>,
    x: Vec<f32>,
    next: Vec<f32>,
    normed: Vec<f32>,
    wide: Vec<f32>,
}

impl R2rHead {
    /// Builds the head from a file's tensors.
    pub fn new(file: &HeadFile) -> Result<Self, HeadProblem> {
        let sizes = Self::sizes_of(file)?;
        let mut reader = Reader::new(file);
        let (hidden, embedding) = (sizes.hidden, sizes.embedding.unwrap_or_default());
        let input_norms = if sizes.normalize_input {
            Some((reader.norm("layer_norm_hidden_states", hidden)?, reader.norm("layer_norm_token", embedding)?))
        } else {
            None
        };
        let logits_projection = reader.linear("logits_projection", hidden, sizes.top_logits.unwrap_or_default())?;
        let (mut width, combined) = reader.matrix_shape("combined_projection.weight")?;
        let combined_projection = reader.linear("combined_projection", width, combined)?;
        let input_projection = reader.linear("backbone.input_projection", width, width)?;
        let mut blocks = Vec::new();
        while reader.has(&format!("backbone.blocks.{}.mlp.0.weight", blocks.len())) && blocks.len() < MAX_BLOCKS {
            let block = Block::new(&mut reader, blocks.len(), width)?;
            width = block.narrow.outputs();
            blocks.push(block);
        }
        let output_norm = reader.norm("backbone.output_layer.0", width)?;
        let outputs = output_rows(&mut reader, width)?;
        let threshold = file.about.threshold;
        reader.finish()?;
        Ok(Self {
            sizes,
            threshold,
            input_norms,
            logits_projection,
            combined_projection,
            input_projection,
            blocks,
            output_norm,
            outputs,
            cpu: Cpu::default(),
            scratch: Mutex::default(),
        })
    }

    pub(super) fn to_host(&self) -> Result<HostHead, tokenrouter_kernels::Error> {
        let block = |block: &Block| {
            let change = block.change.as_ref().map(Linear::to_host).transpose()?;
            Ok((block.norm.to_host(), block.widen.to_host()?, block.narrow.to_host()?, change))
        };
        Ok(HostHead::R2r {
            input_norms: self.input_norms.as_ref().map(|(state, token)| [state.to_host(), token.to_host()]),
            logits: self.logits_projection.to_host()?,
            combined: self.combined_projection.to_host()?,
            input: self.input_projection.to_host()?,
            blocks: self.blocks.iter().map(block).collect::<Result<_, tokenrouter_kernels::Error>>()?,
            output_norm: self.output_norm.to_host(),
            output: rows_to_host(&self.outputs)?,
        })
    }

    /// Widths of the inputs: the logits are projected to the hidden width, and the combined projection takes hidden
    /// state, embedding and projected logits side by side.
    pub(super) fn sizes_of(file: &HeadFile) -> Result<HeadSizes, HeadProblem> {
        let reader = Reader::new(file);
        let (hidden, top_logits) = reader.matrix_shape("logits_projection.weight")?;
        let name = "combined_projection.weight";
        let (_, combined) = reader.matrix_shape(name)?;
        let embedding = hidden.checked_mul(2).and_then(|known| combined.checked_sub(known)).filter(|size| *size > 0);
        let expected = || format!("more than 2 * {hidden} columns: hidden state, embedding and projected logits");
        let embedding = embedding.ok_or_else(|| reader.shape_problem(name, expected()))?;
        let normalize_input = reader.has("layer_norm_hidden_states.weight");
        Ok(HeadSizes { hidden, embedding: Some(embedding), top_logits: Some(top_logits), normalize_input })
    }

    /// What it takes of a row.
    pub fn sizes(&self) -> HeadSizes {
        self.sizes
    }

    /// The threshold that the file recommends.
    pub fn threshold(&self) -> Option<f64> {
        self.threshold
    }

    /// Replaces `out` by one score in `0..=1` per row. Calls from several threads wait for each other.
    pub fn score(&self, inputs: &R2rInputs<'_>, out: &mut Vec<f32>) -> Result<(), HeadError> {
        let HeadSizes { hidden, embedding, top_logits, .. } = self.sizes;
        let (embedding, top) = (embedding.unwrap_or_default(), top_logits.unwrap_or_default());
        let rows = rows("the hidden state", inputs.hidden, hidden)?;
        check_rows("the embedding", inputs.embedding, rows, embedding)?;
        check_rows("the largest logits", inputs.logits, rows, top)?;
        out.clear();
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        for start in (0..rows).step_by(ROWS) {
            let end = rows.min(start + ROWS);
            let part = R2rInputs {
                hidden: &inputs.hidden[start * hidden..end * hidden],
                embedding: &inputs.embedding[start * embedding..end * embedding],
                logits: &inputs.logits[start * top..end * top],
            };
            self.combine(&part, &mut scratch)?;
            self.run_blocks(&mut scratch)?;
            let Scratch { x, normed, .. } = &mut *scratch;
            self.output_norm.forward_rows(x, normed);
            out.extend(normed.chunks_exact(x.len() / (end - start)).map(|row| self.output(row)));
        }
        Ok(())
    }

    /// Puts the inputs side by side and projects them to the blocks' width, in `scratch.x`.
    fn combine(&self, inputs: &R2rInputs<'_>, scratch: &mut Scratch) -> Result<(), HeadError> {
        let HeadSizes { hidden, embedding, top_logits, .. } = self.sizes;
        let (embedding, top) = (embedding.unwrap_or_default(), top_logits.unwrap_or_default());
        let Scratch { logits, combined, x, next, .. } = scratch;
        let stride = hidden + embedding + hidden;
        combined.resize(inputs.hidden.len() / hidden * stride, 0.0);
        let rows = inputs.hidden.chunks_exact(hidden).zip(inputs.embedding.chunks_exact(embedding));
        for (out, (state, token)) in combined.chunks_exact_mut(stride).zip(rows) {
            let (out_state, rest) = out.split_at_mut(hidden);
            let out_token = &mut rest[..embedding];
            if let Some((state_norm, token_norm)) = &self.input_norms {
                state_norm.forward(state, out_state);
                token_norm.forward(token, out_token);
            } else {
                out_state.copy_from_slice(state);
                out_token.copy_from_slice(token);
            }
        }
        logits.clear();
        logits.extend_from_slice(inputs.logits);
        if self.sizes.normalize_input {
            logits.chunks_exact_mut(top).for_each(softmax);
        }
        self.logits_projection.forward_into(&self.cpu, logits, combined, (stride, hidden + embedding))?;
        self.combined_projection.forward(&self.cpu, combined, next)?;
        self.input_projection.forward(&self.cpu, next, x)
    }

    fn run_blocks(&self, scratch: &mut Scratch) -> Result<(), HeadError> {
        let Scratch { x, next, normed, wide, .. } = scratch;
        for block in &self.blocks {
            block.norm.forward_rows(x, normed);
            block.widen.forward(&self.cpu, normed, wide)?;
            gelu(wide);
            block.narrow.forward(&self.cpu, wide, next)?;
            let residual = match &block.change {
                Some(change) => {
                    change.forward(&self.cpu, x, normed)?;
                    &*normed
                }
                None => &*x,
            };
            next.iter_mut().zip(residual).for_each(|(out, residual)| *out += residual);
            std::mem::swap(x, next);
        }
        Ok(())
    }

    fn output(&self, row: &[f32]) -> f32 {
        match &self.outputs[..] {
            [matching, neutral, divergent] => {
                let mut classes = [matching, neutral, divergent].map(|class| class.forward(row));
                softmax(&mut classes);
                classes[2]
            }
            // There is one where there are not three: see `output_rows`.
            outputs => sigmoid(outputs[0].forward(row)),
        }
    }
}

impl Block {
    fn new(reader: &mut Reader<'_>, index: usize, width: usize) -> Result<Self, HeadProblem> {
        let prefix = format!("backbone.blocks.{index}");
        let norm = reader.norm(&format!("{prefix}.layer_norm"), width)?;
        let (wide, _) = reader.matrix_shape(&format!("{prefix}.mlp.0.weight"))?;
        let (out, _) = reader.matrix_shape(&format!("{prefix}.mlp.3.weight"))?;
        let widen = reader.linear(&format!("{prefix}.mlp.0"), wide, width)?;
        let narrow = reader.linear(&format!("{prefix}.mlp.3"), out, wide)?;
        let change =
            if out == width { None } else { Some(reader.linear(&format!("{prefix}.dim_change"), out, width)?) };
        Ok(Self { norm, widen, narrow, change })
    }
}

/// The rows of the last layer: 1 or 3.
fn output_rows(reader: &mut Reader<'_>, width: usize) -> Result<Vec<OutputRow>, HeadProblem> {
    let name = "backbone.output_layer.1.weight";
    let (outputs, _) = reader.matrix_shape(name)?;
    if outputs != 1 && outputs != 3 {
        return Err(reader.shape_problem(name, "1 row (divergence) or 3 (match, neutral, divergence)".into()));
    }
    let weight = reader.values(name, &[outputs, width])?;
    let bias = reader.values("backbone.output_layer.1.bias", &[outputs])?;
    Ok(weight.chunks_exact(width).zip(bias).map(|(weight, bias)| OutputRow { weight: weight.to_vec(), bias }).collect())
}
