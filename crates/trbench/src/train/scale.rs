//! Inputs of a head, standardised: mean 0 and variance 1 on the samples to fit.

use candle_core::{Device, Result, Tensor};
use tokenrouter_core::keyed::{Purpose, draw_unit};

use super::label::Samples;

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
    pub(super) hidden: Scale,
    pub(super) embedding: Scale,
    pub(super) top: Scale,
}

/// Values of a linear layer.
pub(super) struct LayerValues {
    /// `[outputs, inputs]`.
    pub(super) weight: Vec<f32>,
    /// `[outputs]`.
    pub(super) bias: Vec<f32>,
    pub(super) inputs: usize,
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

    /// Number of inputs.
    pub(super) fn width(&self) -> usize {
        self.mean.len()
    }

    /// Changes a layer on standardised inputs, which are its inputs from `first` on, into one on raw inputs.
    pub(super) fn fold(&self, layer: &mut LayerValues, first: usize) {
        for (row, bias) in layer.weight.chunks_exact_mut(layer.inputs).zip(&mut layer.bias) {
            let mut shift = 0f64;
            let row = &mut row[first..first + self.width()];
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

    /// Dropout of hidden states and embeddings: a share is replaced by 0, their mean, and the others are scaled up for it.
    /// The logits stay whole, because their differences count. The draws are keyed; `candle_nn::Dropout` has no seed.
    pub(super) fn dropout(&self, share: f64, seed: u64, key: u64) -> Result<Self> {
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
