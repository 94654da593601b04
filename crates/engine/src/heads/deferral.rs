//! Co-LLM's deferral (arXiv 2403.03870): one extra row of the small model's output matrix.

use tokenrouter_kernels::cuda::HostHead;

use super::layers::{OutputRow, Reader, rows, rows_to_host, sigmoid};
use super::{HeadError, HeadFile, HeadProblem};

const WEIGHT: &str = "lm_head.weight";
const BIAS: &str = "lm_head.bias";

/// The row of the output matrix that stands for deferring. Scores are a Bernoulli probability of their own, no part of
/// the softmax over tokens; a token goes to the large model when `score > threshold`.
#[derive(Debug)]
pub struct DeferralRow {
    threshold: Option<f64>,
    row: OutputRow,
}

impl DeferralRow {
    /// Builds the head from a file's tensors: `lm_head.weight`, `[1, hidden]`, and perhaps `lm_head.bias`, `[1]`.
    pub fn new(file: &HeadFile) -> Result<Self, HeadProblem> {
        let mut reader = Reader::new(file);
        let (_, hidden) = reader.matrix_shape(WEIGHT)?;
        let weight = reader.values(WEIGHT, &[1, hidden])?;
        let bias = if reader.has(BIAS) { reader.values(BIAS, &[1])?[0] } else { 0.0 };
        reader.finish()?;
        Ok(Self { threshold: file.about.threshold, row: OutputRow { weight, bias } })
    }

    pub(super) fn to_host(&self) -> Result<HostHead, tokenrouter_kernels::Error> {
        Ok(HostHead::Mlp { features: None, output: rows_to_host(std::slice::from_ref(&self.row))? })
    }

    pub(super) fn hidden_of(file: &HeadFile) -> Result<usize, HeadProblem> {
        Reader::new(file).matrix_shape(WEIGHT).map(|(_, hidden)| hidden)
    }

    /// Width of the hidden state, after the final norm.
    pub fn hidden_size(&self) -> usize {
        self.row.weight.len()
    }

    /// The threshold that the file recommends.
    pub fn threshold(&self) -> Option<f64> {
        self.threshold
    }

    /// Replaces `out` by one score in `0..=1` per row of `hidden`, `[n, hidden_size]`: the model's last hidden state
    /// after the final norm.
    pub fn score(&self, hidden: &[f32], out: &mut Vec<f32>) -> Result<(), HeadError> {
        rows("the hidden state", hidden, self.hidden_size())?;
        out.clear();
        out.extend(hidden.chunks_exact(self.hidden_size()).map(|row| sigmoid(self.row.forward(row))));
        Ok(())
    }
}
