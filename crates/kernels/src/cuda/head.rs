//! Routing heads on a device: they read what the forward pass left there, and only a score returns.

use super::driver::Arg;
use super::matrix::{DeviceMatrix, HostMatrix};
use super::memory::{Buffer, Device, Slice, optional};
use super::ops::{SIGNAL_WORDS, at_least, int};
use crate::{Error, check};

/// Threads of a block that works on a row.
const THREADS: usize = 256;
/// PyTorch's default for LayerNorm.
const EPSILON: f32 = 1e-5;

/// Weight and bias of a LayerNorm.
#[derive(Debug, Clone)]
pub struct HeadNorm {
    /// `[width]`.
    pub weight: Vec<f32>,
    /// `[width]`.
    pub bias: Vec<f32>,
}

/// `scale * (weight x) + shift`.
#[derive(Debug, Clone)]
pub struct HeadLinear {
    /// `[outputs, inputs]`, `f32` or `bf16`.
    pub weight: HostMatrix,
    /// `[outputs]`; 1 where absent.
    pub scale: Option<Vec<f32>>,
    /// `[outputs]`.
    pub shift: Vec<f32>,
}

/// A head's weights on the host.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "made once, and not moved about")]
pub enum HostHead {
    /// `sigmoid(output(relu(features(hidden))))`, or without features `sigmoid(output(hidden))`: CITER, Co-LLM.
    Mlp {
        /// The hidden layer.
        features: Option<HeadLinear>,
        /// One output.
        output: HeadLinear,
    },
    /// R2R's classifier.
    R2r {
        /// Norms of hidden state and embedding; with them, the largest logits become a softmax.
        input_norms: Option<[HeadNorm; 2]>,
        /// Of the largest logits; `[hidden, top]` with `top` up to a multiple of 8.
        logits: HeadLinear,
        /// Of hidden state, embedding and projected logits side by side.
        combined: HeadLinear,
        /// Before the blocks.
        input: HeadLinear,
        /// `x + narrow(gelu(widen(norm(x))))`; the last, where widths differ, carries `x` over.
        blocks: Vec<(HeadNorm, HeadLinear, HeadLinear, Option<HeadLinear>)>,
        /// Before the output.
        output_norm: HeadNorm,
        /// One output, or three classes of which the last is divergence.
        output: HeadLinear,
    },
}

struct Norm {
    weight: Buffer<f32>,
    bias: Buffer<f32>,
}

struct Linear {
    weight: DeviceMatrix,
    scale: Option<Buffer<f32>>,
    shift: Buffer<f32>,
}

struct Block {
    norm: Norm,
    widen: Linear,
    narrow: Linear,
    change: Option<Linear>,
}

#[allow(clippy::large_enum_variant, reason = "made once, and not moved about")]
enum Parts {
    Mlp {
        features: Option<Linear>,
        output: Linear,
    },
    R2r {
        input_norms: Option<[Norm; 2]>,
        logits: Linear,
        combined: Linear,
        input: Linear,
        blocks: Vec<Block>,
        output_norm: Norm,
        output: Linear,
    },
}

/// `Activation` of `heads.cu`.
#[derive(Clone, Copy)]
enum Activation {
    None = 0,
    Relu = 1,
    Gelu = 2,
    Sigmoid = 3,
}

/// A routing head on a device, with room for its steps.
pub struct CudaHead {
    parts: Parts,
    rows: usize,
    /// As wide as the widest layer, each.
    scratch: [Buffer<f32>; 4],
}

impl std::fmt::Debug for CudaHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaHead").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// What a head looks at, on its device.
pub(super) struct HeadInputs<'a> {
    pub(super) rows: usize,
    /// `[rows, hidden]`.
    pub(super) hidden: Slice<'a, f32>,
    /// Candidates, and how far they are apart.
    pub(super) ids: (Slice<'a, i32>, usize),
    pub(super) embedding: &'a DeviceMatrix,
    /// `[rows, 2 * top]`: logits and ids.
    pub(super) largest: Slice<'a, u32>,
    pub(super) top: usize,
}

impl Norm {
    fn upload(device: &Device, host: &HeadNorm) -> Result<Self, Error> {
        check("bias of a norm", host.bias.len(), host.bias.len() == host.weight.len(), host.weight.len())?;
        Ok(Self { weight: device.upload(&host.weight)?, bias: device.upload(&host.bias)? })
    }

    /// Rows are `from` and `to` apart.
    fn apply(&self, device: &Device, rows: usize, (x, from): Rows<'_>, (out, to): Rows<'_>) -> Result<(), Error> {
        let width = self.weight.len();
        for (what, part, stride) in [("input of a norm", x, from), ("output of a norm", out, to)] {
            at_least(what, part, if rows == 0 { 0 } else { (rows - 1) * stride + width })?;
        }
        let (weight, bias) = (self.weight.all().arg(), self.bias.all().arg());
        let mut args = [x.arg(), out.arg(), weight, bias, Arg::Float(EPSILON), int(width), int(from), int(to)];
        // SAFETY: all sizes were checked.
        unsafe { device.launch("layer_norm", [rows, 1, 1], THREADS, &mut args) }
    }
}

/// Rows of numbers, and how far they are apart.
type Rows<'a> = (Slice<'a, f32>, usize);

impl Linear {
    fn upload(device: &Device, host: &HeadLinear) -> Result<Self, Error> {
        let n = host.weight.n();
        check("bias of a routing head", host.shift.len(), host.shift.len() == n, n)?;
        if let Some(scale) = &host.scale {
            check("scale of a routing head", scale.len(), scale.len() == n, n)?;
        }
        let scale = host.scale.as_ref().map(|scale| device.upload(scale)).transpose()?;
        Ok(Self { weight: DeviceMatrix::upload(device, &host.weight)?, scale, shift: device.upload(&host.shift)? })
    }

    /// `out = activation(linear(x)) + residual`.
    fn apply(
        &self,
        device: &Device,
        (x, rows): (Slice<'_, f32>, usize),
        (out, stride): Rows<'_>,
        (activation, residual): (Activation, Option<Slice<'_, f32>>),
    ) -> Result<(), Error> {
        let n = self.weight.n();
        device.multiply_rows(x, &self.weight, rows, (out, stride))?;
        if let Some(residual) = residual {
            at_least("residual of a routing head", residual, rows * n)?;
        }
        let (scale, shift) = (self.scale.as_ref().map(Buffer::all), self.shift.all().arg());
        let activation = Arg::Int(activation as i32);
        let mut args = [out.arg(), optional(scale), shift, optional(residual), activation, int(n), int(stride)];
        // SAFETY: `multiply_rows` checked `out`; the rest was checked here and when it was made.
        unsafe { device.launch("activate", [rows, 1, 1], THREADS, &mut args) }
    }
}

/// One layer takes what the one before it gives. Columns were padded to a multiple of 8, which what is given is not.
fn chained(outputs: usize, inputs: usize) -> Result<(), Error> {
    let fits = outputs == inputs && outputs.is_multiple_of(8);
    check("width inside of a routing head", outputs, fits, "a multiple of 8, the same in layers that follow each other")
}

/// What [`softmax_copy`] reads and writes of a row.
#[derive(Clone, Copy)]
struct Copied {
    /// Numbers of the row, over which the softmax is taken where `softmax` is set.
    width: usize,
    softmax: bool,
    /// The first number to be written, and how many; 0 where there are none.
    first: usize,
    count: usize,
}

/// Copies a part of each row, or of its softmax.
fn softmax_copy(
    device: &Device,
    (rows, what): (usize, Copied),
    (x, from): Rows<'_>,
    (out, to): Rows<'_>,
) -> Result<(), Error> {
    let Copied { width, softmax, first, count } = what;
    let end = |stride: usize, count: usize| if rows == 0 { 0 } else { (rows - 1) * stride + count };
    at_least("input of a softmax", x, end(from, width))?;
    at_least("output of a softmax", out, end(to, count))?;
    let softmax = Arg::Int(i32::from(softmax));
    let mut args = [x.arg(), out.arg(), softmax, int(width), int(first), int(count), int(from), int(to)];
    // SAFETY: all sizes were checked.
    unsafe { device.launch("softmax_copy", [rows, 1, 1], THREADS, &mut args) }
}

impl CudaHead {
    /// Copies a head to the device that runs the model whose `hidden` width it is for, with room for `rows` rows.
    pub fn upload(device: &Device, host: &HostHead, rows: usize) -> Result<Self, Error> {
        let linear = |linear: &HeadLinear| Linear::upload(device, linear);
        let norm = |norm: &HeadNorm| Norm::upload(device, norm);
        let parts = match host {
            HostHead::Mlp { features, output } => {
                Parts::Mlp { features: features.as_ref().map(linear).transpose()?, output: linear(output)? }
            }
            HostHead::R2r { input_norms, logits, combined, input, blocks, output_norm, output } => {
                let block = |(n, widen, narrow, change): &(HeadNorm, HeadLinear, HeadLinear, Option<HeadLinear>)| {
                    let change = change.as_ref().map(linear).transpose()?;
                    Ok(Block { norm: norm(n)?, widen: linear(widen)?, narrow: linear(narrow)?, change })
                };
                Parts::R2r {
                    input_norms: input_norms.as_ref().map(|[a, b]| Ok::<_, Error>([norm(a)?, norm(b)?])).transpose()?,
                    logits: linear(logits)?,
                    combined: linear(combined)?,
                    input: linear(input)?,
                    blocks: blocks.iter().map(block).collect::<Result<_, Error>>()?,
                    output_norm: norm(output_norm)?,
                    output: linear(output)?,
                }
            }
        };
        let width = parts.widest();
        let buffer = || device.buffer(rows * width);
        Ok(Self { parts, rows, scratch: [buffer()?, buffer()?, buffer()?, buffer()?] })
    }

    /// Whether it can score rows of a model.
    pub(super) fn check(&self, hidden: usize, top: usize, rows: usize) -> Result<(), Error> {
        check("rows of a routing head", self.rows, self.rows >= rows, format_args!("at least {rows}"))?;
        match &self.parts {
            Parts::Mlp { features, output } => {
                if let Some(features) = features {
                    chained(features.weight.n(), output.weight.k())?;
                }
                let width = features.as_ref().unwrap_or(output).weight.k();
                check("hidden width of a routing head", width, width == hidden, hidden)?;
                check("outputs of a routing head", output.weight.n(), output.weight.n() == 1, 1)
            }
            Parts::R2r { input_norms, logits, combined, input, blocks, output_norm, output } => {
                let mut width = combined.weight.n();
                chained(width, input.weight.k())?;
                for block in blocks {
                    chained(width, block.norm.weight.len())?;
                    chained(width, block.widen.weight.k())?;
                    chained(block.widen.weight.n(), block.narrow.weight.k())?;
                    block.change.iter().try_for_each(|change| chained(width, change.weight.k()))?;
                    width = block.narrow.weight.n();
                }
                chained(width, output_norm.weight.len())?;
                chained(width, output.weight.k())?;
                let padded = top.next_multiple_of(8);
                check("largest logits of a routing head", logits.weight.k(), logits.weight.k() == padded, padded)?;
                check("hidden width of a routing head", logits.weight.n(), logits.weight.n() == hidden, hidden)?;
                let inputs = combined.weight.k();
                check("inputs of a routing head", inputs, inputs == 3 * hidden, 3 * hidden)?;
                for norm in input_norms.iter().flatten() {
                    check("norm of a routing head", norm.weight.len(), norm.weight.len() == hidden, hidden)?;
                }
                let classes = output.weight.n();
                check("outputs of a routing head", classes, matches!(classes, 1 | 3), "1 or 3")
            }
        }
    }

    /// Writes the score of every row to the last of its words in `signals`.
    pub(super) fn score(&self, device: &Device, inputs: &HeadInputs<'_>, signals: Slice<'_, u32>) -> Result<(), Error> {
        let rows = inputs.rows;
        check("rows of a routing head", rows, rows <= self.rows, format_args!("at most {}", self.rows))?;
        let score = (signals.slice(SIGNAL_WORDS - 1..signals.len()).as_floats(), SIGNAL_WORDS);
        let [a, b, ..] = &self.scratch;
        match &self.parts {
            Parts::Mlp { features: Some(features), output } => {
                let wide = (a.all(), features.weight.n());
                features.apply(device, (inputs.hidden, rows), wide, (Activation::Relu, None))?;
                output.apply(device, (a.all(), rows), score, (Activation::Sigmoid, None))
            }
            Parts::Mlp { features: None, output } => {
                output.apply(device, (inputs.hidden, rows), score, (Activation::Sigmoid, None))
            }
            Parts::R2r { output_norm, output, .. } => {
                let (x, width) = self.run_blocks(device, inputs)?;
                output_norm.apply(device, rows, (x.all(), width), (a.all(), width))?;
                let classes = output.weight.n();
                if classes == 1 {
                    return output.apply(device, (a.all(), rows), score, (Activation::Sigmoid, None));
                }
                output.apply(device, (a.all(), rows), (b.all(), classes), (Activation::None, None))?;
                let last = Copied { width: classes, softmax: true, first: classes - 1, count: 1 };
                softmax_copy(device, (rows, last), (b.all(), classes), score)
            }
        }
    }

    /// R2R up to its last block: the buffer with the result, and its width. `scratch[0]` is free then.
    fn run_blocks(&self, device: &Device, inputs: &HeadInputs<'_>) -> Result<(&Buffer<f32>, usize), Error> {
        let Parts::R2r { input_norms, logits, combined, input, blocks, .. } = &self.parts else {
            return Err(super::driver::failed("routing head", "not one of R2R"));
        };
        let [a, b, c, d] = &self.scratch;
        let (rows, hidden) = (inputs.rows, logits.weight.n());
        let stride = 3 * hidden;
        let (state, token) = ((a.all(), stride), (a.slice(hidden..a.len()), stride));
        if let Some([state_norm, token_norm]) = input_norms {
            state_norm.apply(device, rows, (inputs.hidden, hidden), state)?;
            device.embed((inputs.ids.0, inputs.ids.1, rows), inputs.embedding, (b.all(), hidden))?;
            token_norm.apply(device, rows, (b.all(), hidden), token)?;
        } else {
            let all = Copied { width: hidden, softmax: false, first: 0, count: hidden };
            softmax_copy(device, (rows, all), (inputs.hidden, hidden), state)?;
            device.embed((inputs.ids.0, inputs.ids.1, rows), inputs.embedding, token)?;
        }
        let top = (inputs.largest.as_floats(), 2 * inputs.top);
        let padded = logits.weight.k();
        let all = Copied { width: inputs.top, softmax: input_norms.is_some(), first: 0, count: padded };
        softmax_copy(device, (rows, all), top, (b.all(), padded))?;
        let projected = (a.slice(2 * hidden..a.len()), stride);
        logits.apply(device, (b.all(), rows), projected, (Activation::None, None))?;
        let mut width = combined.weight.n();
        combined.apply(device, (a.all(), rows), (b.all(), width), (Activation::None, None))?;
        input.apply(device, (b.all(), rows), (c.all(), width), (Activation::None, None))?;
        let (mut x, mut next) = (c, d);
        for block in blocks {
            block.norm.apply(device, rows, (x.all(), width), (a.all(), width))?;
            let (wide, out) = (block.widen.weight.n(), block.narrow.weight.n());
            block.widen.apply(device, (a.all(), rows), (b.all(), wide), (Activation::Gelu, None))?;
            let residual = if let Some(change) = &block.change {
                change.apply(device, (x.all(), rows), (a.all(), out), (Activation::None, None))?;
                a
            } else {
                x
            };
            block.narrow.apply(device, (b.all(), rows), (next.all(), out), (Activation::None, Some(residual.all())))?;
            width = out;
            std::mem::swap(&mut x, &mut next);
        }
        Ok((x, width))
    }
}

impl Parts {
    /// Numbers of a row of the widest layer.
    fn widest(&self) -> usize {
        let size = |linear: &Linear| linear.weight.n().max(linear.weight.k());
        match self {
            Self::Mlp { features, output } => features.as_ref().map_or(0, size).max(size(output)),
            Self::R2r { logits, combined, input, blocks, output, .. } => {
                let blocks = blocks.iter().flat_map(|b| [Some(&b.widen), Some(&b.narrow), b.change.as_ref()]).flatten();
                blocks.chain([logits, combined, input, output]).map(size).max().unwrap_or(0)
            }
        }
    }
}
