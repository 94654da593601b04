//! The three heads as networks that can be trained, and their way into a head file.
//!
//! Inputs are standardised while training; the scale is folded into the first layers of the file, so that the head takes
//! what the engine gives it.

use std::collections::BTreeMap;

use candle_core::{Device, Result, Tensor, Var};
use tokenrouter_engine::heads::{HeadKind, HeadTensor};
use tokenrouter_engine::keyed::{Purpose, draw_unit};

use super::label::Samples;

/// Epsilon of layer norms, as in R2R's classifier.
const EPSILON: f64 = 1e-5;

/// Sizes of a network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Width of the hidden layers.
    pub(super) hidden: usize,
    /// Residual blocks of R2R's classifier.
    pub(super) blocks: usize,
    /// Their inner width, relative to `hidden`.
    pub(super) expansion: usize,
}

/// Samples as tensors, standardised.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) hidden: Tensor,
    pub(super) embedding: Tensor,
    pub(super) top: Tensor,
}

/// Mean and inverse standard deviation of each input.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    mean: Vec<f32>,
    inverse: Vec<f32>,
}

/// The scales of all inputs of a data set.
#[derive(Debug, Clone)]
pub(super) struct Scales {
    hidden: Scale,
    embedding: Scale,
    top: Scale,
}

impl Scale {
    fn of(values: &[f32], width: usize) -> Self {
        let n = (values.len() / width).max(1) as f64;
        let (mut sum, mut squares) = (vec![0f64; width], vec![0f64; width]);
        for row in values.chunks_exact(width) {
            for (i, value) in row.iter().enumerate() {
                sum[i] += f64::from(*value);
                squares[i] += f64::from(*value).powi(2);
            }
        }
        let variance = |i: usize| (squares[i] / n - (sum[i] / n).powi(2)).max(0.0);
        // An input that hardly changes must not become noise.
        let inverse = (0..width).map(|i| (1.0 / (variance(i).sqrt() + 1e-4)) as f32).collect();
        Self { mean: sum.iter().map(|sum| (sum / n) as f32).collect(), inverse }
    }

    fn apply(&self, values: &[f32]) -> Result<Tensor> {
        let width = self.mean.len();
        let scaled =
            values.iter().enumerate().map(|(at, value)| (value - self.mean[at % width]) * self.inverse[at % width]);
        Tensor::from_iter(scaled, &Device::Cpu)?.reshape(((), width))
    }

    /// Changes a layer `[outputs, inputs]` on standardised inputs (from `from` on) into one on raw inputs.
    fn fold(&self, (weight, inputs): (&mut [f32], usize), from: usize, bias: &mut [f32]) {
        for (row, bias) in weight.chunks_exact_mut(inputs).zip(bias) {
            let mut shift = 0f64;
            let row = &mut row[from..from + self.mean.len()];
            for (weight, (mean, inverse)) in row.iter_mut().zip(self.mean.iter().zip(&self.inverse)) {
                *weight *= inverse;
                shift += f64::from(*weight) * f64::from(*mean);
            }
            *bias = (f64::from(*bias) - shift) as f32;
        }
    }
}

impl Scales {
    pub(super) fn of(samples: &Samples) -> Self {
        Self {
            hidden: Scale::of(&samples.hidden, samples.width),
            embedding: Scale::of(&samples.embedding, samples.width),
            top: Scale::of(&samples.top, samples.logits),
        }
    }

    pub(super) fn apply(&self, samples: &Samples) -> Result<Inputs> {
        Ok(Inputs {
            hidden: self.hidden.apply(&samples.hidden)?,
            embedding: self.embedding.apply(&samples.embedding)?,
            top: self.top.apply(&samples.top)?,
        })
    }
}

impl Inputs {
    pub(super) fn select(&self, indices: &Tensor) -> Result<Self> {
        Ok(Self {
            hidden: self.hidden.index_select(indices, 0)?,
            embedding: self.embedding.index_select(indices, 0)?,
            top: self.top.index_select(indices, 0)?,
        })
    }

    /// Hidden states and embeddings of which a share is replaced by 0, their mean, and the others scaled up for it; the
    /// logits stay whole, because their differences count. The draws are keyed.
    pub(super) fn dropped(&self, share: f64, seed: u64, key: u64) -> Result<Self> {
        if share == 0.0 {
            return Ok(Self { hidden: self.hidden.clone(), embedding: self.embedding.clone(), top: self.top.clone() });
        }
        let kept = (1.0 / (1.0 - share)) as f32;
        let drop = |values: &Tensor, which: u64| {
            let draw = |at: u64| draw_unit(seed, 2 * key + which, at, Purpose::Sample);
            let mask = (0..values.elem_count() as u64).map(|at| if draw(at) < share { 0.0 } else { kept });
            values * Tensor::from_iter(mask, &Device::Cpu)?.reshape(values.shape())?
        };
        Ok(Self { hidden: drop(&self.hidden, 0)?, embedding: drop(&self.embedding, 1)?, top: self.top.clone() })
    }
}

/// A head's parameters under their names in the file.
#[derive(Debug)]
pub(super) struct Net {
    kind: HeadKind,
    vars: BTreeMap<String, Var>,
    blocks: usize,
}

impl Net {
    /// Random parameters, a function of `seed`.
    pub(super) fn new(kind: HeadKind, (width, logits): (usize, usize), size: Size, seed: u64) -> Result<Self> {
        let mut net = Self { kind, vars: BTreeMap::new(), blocks: size.blocks };
        let h = size.hidden;
        match kind {
            HeadKind::R2rMlp => {
                net.linear("logits_projection", width, logits, seed)?;
                net.linear("combined_projection", h, 3 * width, seed)?;
                net.linear("backbone.input_projection", h, h, seed)?;
                for block in 0..size.blocks {
                    let name = |part: &str| format!("backbone.blocks.{block}.{part}");
                    net.norm(&name("layer_norm"), h)?;
                    net.linear(&name("mlp.0"), size.expansion * h, h, seed)?;
                    net.linear(&name("mlp.3"), h, size.expansion * h, seed)?;
                }
                net.norm("backbone.output_layer.0", h)?;
                net.linear("backbone.output_layer.1", 1, h, seed)?;
            }
            HeadKind::CiterMlp => {
                net.linear("mlp.0", h, width, seed)?;
                net.linear("mlp.4", h.div_ceil(2), h, seed)?;
                net.linear("linear", 1, h.div_ceil(2), seed)?;
            }
            HeadKind::DeferralRow => net.linear("lm_head", 1, width, seed)?,
        }
        Ok(net)
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize, seed: u64) -> Result<()> {
        let bound = 1.0 / (inputs as f64).sqrt();
        let key = self.vars.len() as u64;
        let draw = |at: u64| (bound * (2.0 * draw_unit(seed, key, at, Purpose::Sample) - 1.0)) as f32;
        let values: Vec<f32> = (0..(outputs * inputs) as u64).map(draw).collect();
        self.put(format!("{name}.weight"), Tensor::from_vec(values, (outputs, inputs), &Device::Cpu)?)?;
        self.put(format!("{name}.bias"), Tensor::from_vec(vec![0f32; outputs], outputs, &Device::Cpu)?)
    }

    fn norm(&mut self, name: &str, width: usize) -> Result<()> {
        self.put(format!("{name}.weight"), Tensor::from_vec(vec![1f32; width], width, &Device::Cpu)?)?;
        self.put(format!("{name}.bias"), Tensor::from_vec(vec![0f32; width], width, &Device::Cpu)?)
    }

    fn put(&mut self, name: String, values: Tensor) -> Result<()> {
        self.vars.insert(name, Var::from_tensor(&values)?);
        Ok(())
    }

    /// All parameters, in a fixed order.
    pub(super) fn vars(&self) -> Vec<Var> {
        self.vars.values().cloned().collect()
    }

    /// Logits of the head's score, `[n]`.
    pub(super) fn forward(&self, inputs: &Inputs) -> Result<Tensor> {
        let logits = match self.kind {
            HeadKind::R2rMlp => self.r2r(inputs)?,
            HeadKind::CiterMlp => {
                let features = self.apply("mlp.0", &inputs.hidden)?.relu()?;
                self.apply("linear", &self.apply("mlp.4", &features)?)?
            }
            HeadKind::DeferralRow => self.apply("lm_head", &inputs.hidden)?,
        };
        logits.squeeze(1)
    }

    fn r2r(&self, inputs: &Inputs) -> Result<Tensor> {
        let projected = self.apply("logits_projection", &inputs.top)?;
        let combined = Tensor::cat(&[&inputs.hidden, &inputs.embedding, &projected], 1)?;
        let mut x = self.apply("backbone.input_projection", &self.apply("combined_projection", &combined)?)?;
        for block in 0..self.blocks {
            let name = |part: &str| format!("backbone.blocks.{block}.{part}");
            let wide = self.apply(&name("mlp.0"), &self.normed(&name("layer_norm"), &x)?)?.gelu_erf()?;
            x = (x + self.apply(&name("mlp.3"), &wide)?)?;
        }
        self.apply("backbone.output_layer.1", &self.normed("backbone.output_layer.0", &x)?)
    }

    fn var(&self, name: &str, part: &str) -> Result<&Tensor> {
        let name = format!("{name}.{part}");
        self.vars
            .get(&name)
            .map(Var::as_tensor)
            .ok_or_else(|| candle_core::Error::Msg(format!("no parameter `{name}`")))
    }

    fn apply(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.var(name, "weight")?.t()?)?.broadcast_add(self.var(name, "bias")?)
    }

    /// From single operations, because candle's fused layer norm has no gradient.
    fn normed(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let centred = x.broadcast_sub(&x.mean_keepdim(1)?)?;
        let variance = centred.sqr()?.mean_keepdim(1)?;
        let normed = centred.broadcast_div(&(variance + EPSILON)?.sqrt()?)?;
        normed.broadcast_mul(self.var(name, "weight")?)?.broadcast_add(self.var(name, "bias")?)
    }

    /// The tensors of a head file.
    pub(super) fn export(&self, scales: &Scales) -> Result<BTreeMap<String, HeadTensor>> {
        let mut values: BTreeMap<String, (Vec<usize>, Vec<f32>)> = BTreeMap::new();
        for (name, var) in &self.vars {
            values.insert(name.clone(), (var.dims().to_vec(), var.flatten_all()?.to_vec1()?));
        }
        let mut fold = |name: &str, folds: &[(&Scale, usize)]| {
            let Some((_, mut bias)) = values.remove(&format!("{name}.bias")) else { return };
            let outputs = bias.len();
            if let Some((shape, weight)) = values.get_mut(&format!("{name}.weight")) {
                for (scale, from) in folds {
                    scale.fold((weight, shape[1]), *from, &mut bias);
                }
            }
            values.insert(format!("{name}.bias"), (vec![outputs], bias));
        };
        match self.kind {
            HeadKind::R2rMlp => {
                fold("logits_projection", &[(&scales.top, 0)]);
                fold("combined_projection", &[(&scales.hidden, 0), (&scales.embedding, scales.hidden.mean.len())]);
            }
            HeadKind::CiterMlp => {
                fold("mlp.0", &[(&scales.hidden, 0)]);
                // A batch norm that changes nothing: its epsilon of 1e-5 makes the variance 1.
                let wide = values["mlp.0.bias"].1.len();
                for (name, value) in
                    [("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0 - 1e-5)]
                {
                    values.insert(format!("mlp.1.{name}"), (vec![wide], vec![value; wide]));
                }
            }
            HeadKind::DeferralRow => fold("lm_head", &[(&scales.hidden, 0)]),
        }
        Ok(values.into_iter().map(|(name, (shape, values))| (name, HeadTensor::f32(shape, values))).collect())
    }
}

#[cfg(test)]
mod tests {
    use tokenrouter_engine::heads::{About, Head, HeadFile, R2rInputs};

    use super::*;
    use crate::train::testing::separable;

    /// What is trained and what the engine loads from the file are the same function.
    #[test]
    fn a_file_scores_as_the_network() {
        let samples = separable(50, 0.3);
        let scales = Scales::of(&samples);
        let size = Size { hidden: 12, blocks: 2, expansion: 2 };
        for kind in HeadKind::ALL {
            let net = Net::new(kind, (samples.width, samples.logits), size, 3).expect("a network");
            let logits: Vec<f32> =
                scales.apply(&samples).and_then(|inputs| net.forward(&inputs)?.to_vec1()).expect("a forward pass");
            let tensors = net.export(&scales).expect("tensors");
            let file = HeadFile { kind, about: About::default(), tensors };
            let bytes = file.to_bytes().expect("a valid file");
            let mut scores = Vec::new();
            let Samples { hidden, embedding, top, .. } = &samples;
            match Head::new(&HeadFile::from_bytes(&bytes).expect("readable")).expect("a head") {
                Head::R2r(head) => head.score(&R2rInputs { hidden, embedding, logits: top }, &mut scores),
                Head::Citer(head) => head.score(hidden, &mut scores),
                Head::Deferral(head) => head.score(hidden, &mut scores),
            }
            .expect("scores");
            for (logit, score) in logits.iter().zip(&scores) {
                let wanted = 1.0 / (1.0 + (-logit).exp());
                assert!((wanted - score).abs() < 1e-4, "{kind:?}: {wanted} and {score}");
            }
            assert!(scores.iter().any(|score| (score - scores[0]).abs() > 1e-3), "{kind:?}: all the same");
        }
    }
}
