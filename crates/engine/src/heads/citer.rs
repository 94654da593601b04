//! CITER's confidence network (arXiv 2502.01976): one hidden layer with BatchNorm on the hidden state.

use std::sync::{Mutex, PoisonError};

use tokenrouter_kernels::PackedMatrix;
use tokenrouter_kernels::cuda::{HeadLinear, HostHead};

use super::layers::{Cpu, EPSILON, OutputRow, Reader, check_values, rows, rows_to_host, sigmoid, to_host};
use super::{HeadError, HeadFile, HeadProblem};

/// Rows that are worked on at a time: bounds the scratch memory.
const ROWS: usize = 64;

/// CITER's confidence network. Scores say how sure it is that the small model suffices; a token goes to the large model
/// when `score < threshold`.
#[derive(Debug)]
pub struct CiterHead {
    hidden: usize,
    threshold: Option<f64>,
    weight: PackedMatrix,
    /// BatchNorm in evaluation mode, with the layer's bias: `scale * product + shift`, per output.
    scale: Vec<f32>,
    shift: Vec<f32>,
    /// The two last layers, which have nothing between them, as one.
    output: OutputRow,
    cpu: Cpu,
    features: Mutex<Vec<f32>>,
}

impl CiterHead {
    /// Builds the head from a file's tensors.
    pub fn new(file: &HeadFile) -> Result<Self, HeadProblem> {
        let mut reader = Reader::new(file);
        let (wide, hidden) = reader.matrix_shape("mlp.0.weight")?;
        let weight = reader.matrix("mlp.0", wide, hidden)?;
        let bias = reader.values("mlp.0.bias", &[wide])?;
        let gain = reader.values("mlp.1.weight", &[wide])?;
        let offset = reader.values("mlp.1.bias", &[wide])?;
        let mean = reader.values("mlp.1.running_mean", &[wide])?;
        let variance = reader.values("mlp.1.running_var", &[wide])?;
        check_values("mlp.1.running_var", &variance, |value| value >= 0.0, "a variance, at least 0")?;
        let scale: Vec<f32> = gain.iter().zip(&variance).map(|(gain, var)| gain / (var + EPSILON).sqrt()).collect();
        let shift = (0..wide).map(|i| scale[i] * (bias[i] - mean[i]) + offset[i]).collect();
        let output = fold(&mut reader, wide)?;
        reader.finish()?;
        let threshold = file.about.threshold;
        Ok(Self { hidden, threshold, weight, scale, shift, output, cpu: Cpu::default(), features: Mutex::default() })
    }

    pub(super) fn to_host(&self) -> Result<HostHead, tokenrouter_kernels::Error> {
        let (scale, shift) = (Some(self.scale.clone()), self.shift.clone());
        let features = Some(HeadLinear { weight: to_host(&self.weight)?, scale, shift });
        Ok(HostHead::Mlp { features, output: rows_to_host(std::slice::from_ref(&self.output))? })
    }

    pub(super) fn hidden_of(file: &HeadFile) -> Result<usize, HeadProblem> {
        Reader::new(file).matrix_shape("mlp.0.weight").map(|(_, hidden)| hidden)
    }

    /// Width of the hidden state, after the final norm.
    pub fn hidden_size(&self) -> usize {
        self.hidden
    }

    /// The threshold that the file recommends.
    pub fn threshold(&self) -> Option<f64> {
        self.threshold
    }

    /// Replaces `out` by one score in `0..=1` per row of `hidden`, `[n, hidden_size]`: the model's last hidden state
    /// after the final norm, at the position that predicts the candidate. Calls from several threads wait for each
    /// other.
    pub fn score(&self, hidden: &[f32], out: &mut Vec<f32>) -> Result<(), HeadError> {
        rows("the hidden state", hidden, self.hidden)?;
        out.clear();
        let mut features = self.features.lock().unwrap_or_else(PoisonError::into_inner);
        for part in hidden.chunks(ROWS * self.hidden) {
            let wide = self.weight.n();
            features.resize(part.len() / self.hidden * wide, 0.0);
            self.cpu.multiply(&self.weight, part, &mut features, (wide, 0))?;
            for row in features.chunks_exact_mut(wide) {
                for ((x, scale), shift) in row.iter_mut().zip(&self.scale).zip(&self.shift) {
                    // A clamp passes a NaN on, which a maximum would hide.
                    *x = (*x * scale + shift).clamp(0.0, f32::INFINITY);
                }
                out.push(sigmoid(self.output.forward(row)));
            }
        }
        Ok(())
    }
}

/// `linear(mlp.4(x))` as one row over the features of `mlp.0`.
fn fold(reader: &mut Reader<'_>, wide: usize) -> Result<OutputRow, HeadProblem> {
    let (middle, _) = reader.matrix_shape("mlp.4.weight")?;
    let matrix = reader.values("mlp.4.weight", &[middle, wide])?;
    let offset = reader.values("mlp.4.bias", &[middle])?;
    let last = reader.values("linear.weight", &[1, middle])?;
    let mut bias = f64::from(reader.values("linear.bias", &[1])?[0]);
    let mut weight = vec![0f64; wide];
    for ((factor, row), offset) in last.iter().zip(matrix.chunks_exact(wide)).zip(offset) {
        bias += f64::from(*factor) * f64::from(offset);
        weight.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*factor) * f64::from(*value));
    }
    Ok(OutputRow { weight: weight.into_iter().map(|value| value as f32).collect(), bias: bias as f32 })
}
