//! The three heads as networks that can be trained, and their way into a head file.
//!
//! Inputs are standardised while training; the scale is folded into the first layers of the file, so that the head takes
//! what the engine gives it.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{Init, Linear, Module, VarMap, ops};
use tokenrouter_core::keyed::{Purpose, draw_unit};
use tokenrouter_core::routing::HeadKind;
use tokenrouter_engine::heads::HeadTensor;

use super::scale::{Inputs, LayerValues, Scale, Scales};

/// Epsilon of layer norms, as in R2R's classifier.
const EPSILON: f32 = 1e-5;

/// Sizes of a network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Width of the small model's hidden state and of its embedding.
    pub(super) width: usize,
    /// Number of its top logits.
    pub(super) logits: usize,
    /// Width of the hidden layers.
    pub(super) hidden: usize,
    /// Residual blocks of R2R's classifier.
    pub(super) blocks: usize,
    /// Their inner width, relative to `hidden`.
    pub(super) expansion: usize,
}

/// A head that can be trained. Its parameters have the names of the head file.
pub(super) struct Net {
    vars: VarMap,
    layers: Layers,
}

enum Layers {
    R2r(Box<R2rLayers>),
    Citer { input: Linear, hidden: Linear, output: Linear },
    Deferral(Linear),
}

struct R2rLayers {
    logits_projection: Linear,
    combined_projection: Linear,
    input_projection: Linear,
    blocks: Vec<ResidualBlock>,
    output_norm: LayerNorm,
    output: Linear,
}

struct ResidualBlock {
    norm: LayerNorm,
    expand: Linear,
    contract: Linear,
}

/// Not `candle_nn::LayerNorm`, whose fused operation has no gradient.
struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::layer_norm_slow(x, &self.weight, &self.bias, EPSILON)
    }
}

impl Module for ResidualBlock {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x + self.contract.forward(&self.expand.forward(&self.norm.forward(x)?)?.gelu_erf()?)?
    }
}

impl R2rLayers {
    fn forward(&self, inputs: &Inputs) -> Result<Tensor> {
        let projected = self.logits_projection.forward(&inputs.top)?;
        let combined = Tensor::cat(&[&inputs.hidden, &inputs.embedding, &projected], 1)?;
        let x = self.input_projection.forward(&self.combined_projection.forward(&combined)?)?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.forward(&x))?;
        self.output.forward(&self.output_norm.forward(&x)?)
    }
}

/// Makes layers whose parameters are a function of the seed and of the order of the layers: the initialisers of
/// `candle_nn` draw from a generator that cannot be seeded on the CPU.
struct Builder {
    vars: VarMap,
    seed: u64,
}

impl Builder {
    /// Weights are uniform within `1 / sqrt(inputs)`, biases are 0.
    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        let bound = 1.0 / (inputs as f64).sqrt();
        let key = self.vars.all_vars().len() as u64;
        let draw = |at: u64| (bound * (2.0 * draw_unit(self.seed, key, at, Purpose::Sample) - 1.0)) as f32;
        let values: Vec<f32> = (0..(outputs * inputs) as u64).map(draw).collect();
        let path = format!("{name}.weight");
        let weight = self.constant(&path, &[outputs, inputs], 0.0)?;
        self.vars.set_one(&path, Tensor::from_vec(values, (outputs, inputs), &Device::Cpu)?)?;
        Ok(Linear::new(weight, Some(self.constant(&format!("{name}.bias"), &[outputs], 0.0)?)))
    }

    fn norm(&self, name: &str, width: usize) -> Result<LayerNorm> {
        let weight = self.constant(&format!("{name}.weight"), &[width], 1.0)?;
        Ok(LayerNorm { weight, bias: self.constant(&format!("{name}.bias"), &[width], 0.0)? })
    }

    fn constant(&self, path: &str, shape: &[usize], value: f64) -> Result<Tensor> {
        self.vars.get(shape, path, Init::Const(value), DType::F32, &Device::Cpu)
    }

    fn r2r(&mut self, size: Size) -> Result<R2rLayers> {
        let h = size.hidden;
        let logits_projection = self.linear("logits_projection", size.logits, size.width)?;
        let combined_projection = self.linear("combined_projection", 3 * size.width, h)?;
        let input_projection = self.linear("backbone.input_projection", h, h)?;
        let mut blocks = Vec::new();
        for block in 0..size.blocks {
            let name = |part: &str| format!("backbone.blocks.{block}.{part}");
            blocks.push(ResidualBlock {
                norm: self.norm(&name("layer_norm"), h)?,
                expand: self.linear(&name("mlp.0"), h, size.expansion * h)?,
                contract: self.linear(&name("mlp.3"), size.expansion * h, h)?,
            });
        }
        let output_norm = self.norm("backbone.output_layer.0", h)?;
        let output = self.linear("backbone.output_layer.1", h, 1)?;
        Ok(R2rLayers { logits_projection, combined_projection, input_projection, blocks, output_norm, output })
    }
}

impl Net {
    /// Random parameters, a function of `seed`.
    pub(super) fn new(kind: HeadKind, size: Size, seed: u64) -> Result<Self> {
        let mut builder = Builder { vars: VarMap::new(), seed };
        let half = size.hidden.div_ceil(2);
        let layers = match kind {
            HeadKind::R2rMlp => Layers::R2r(Box::new(builder.r2r(size)?)),
            HeadKind::CiterMlp => Layers::Citer {
                input: builder.linear("mlp.0", size.width, size.hidden)?,
                hidden: builder.linear("mlp.4", size.hidden, half)?,
                output: builder.linear("linear", half, 1)?,
            },
            HeadKind::DeferralRow => Layers::Deferral(builder.linear("lm_head", size.width, 1)?),
        };
        Ok(Self { vars: builder.vars, layers })
    }

    /// All parameters.
    pub(super) fn vars(&self) -> Vec<Var> {
        self.vars.all_vars()
    }

    /// Logits of the head's score, `[n]`.
    pub(super) fn forward(&self, inputs: &Inputs) -> Result<Tensor> {
        let logits = match &self.layers {
            Layers::R2r(layers) => layers.forward(inputs)?,
            Layers::Citer { input, hidden, output } => {
                output.forward(&hidden.forward(&input.forward(&inputs.hidden)?.relu()?)?)?
            }
            Layers::Deferral(layer) => layer.forward(&inputs.hidden)?,
        };
        logits.squeeze(1)
    }

    /// The tensors of a head file.
    pub(super) fn export(&self, scales: &Scales) -> Result<BTreeMap<String, HeadTensor>> {
        let mut tensors = BTreeMap::new();
        for (name, var) in self.vars.data().lock().unwrap_or_else(PoisonError::into_inner).iter() {
            tensors.insert(name.clone(), HeadTensor::f32(var.dims(), var.flatten_all()?.to_vec1()?));
        }
        let mut fold = |name: &str, layer: &Linear, scales: &[&Scale]| -> Result<()> {
            let (outputs, inputs) = layer.weight().dims2()?;
            let bias = layer.bias().map_or_else(|| Ok(vec![0.0; outputs]), Tensor::to_vec1)?;
            let mut values = LayerValues { weight: layer.weight().flatten_all()?.to_vec1()?, bias, inputs };
            let mut first = 0;
            for scale in scales {
                scale.fold(&mut values, first);
                first += scale.width();
            }
            tensors.insert(format!("{name}.weight"), HeadTensor::f32([outputs, inputs], values.weight));
            tensors.insert(format!("{name}.bias"), HeadTensor::f32([outputs], values.bias));
            Ok(())
        };
        match &self.layers {
            Layers::R2r(layers) => {
                fold("logits_projection", &layers.logits_projection, &[&scales.top])?;
                fold("combined_projection", &layers.combined_projection, &[&scales.hidden, &scales.embedding])?;
            }
            Layers::Citer { input, .. } => {
                fold("mlp.0", input, &[&scales.hidden])?;
                // A batch norm that changes nothing: its epsilon of 1e-5 makes the variance 1.
                let width = input.weight().dim(0)?;
                for (name, value) in
                    [("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0 - 1e-5)]
                {
                    tensors.insert(format!("mlp.1.{name}"), HeadTensor::f32([width], vec![value; width]));
                }
            }
            Layers::Deferral(layer) => fold("lm_head", layer, &[&scales.hidden])?,
        }
        Ok(tensors)
    }
}

#[cfg(test)]
mod tests {
    use tokenrouter_engine::heads::{About, Head, HeadFile, R2rInputs};

    use super::*;
    use crate::train::label::Samples;
    use crate::train::testing::separable;

    /// What is trained and what the engine loads from the file are the same function.
    #[test]
    fn a_file_scores_as_the_network() {
        let samples = separable(50, 0.3);
        let scales = Scales::of(&samples);
        let size = Size { width: samples.width, logits: samples.logits, hidden: 12, blocks: 2, expansion: 2 };
        for kind in HeadKind::ALL {
            let net = Net::new(kind, size, 3).expect("a network");
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
