//! Parts that heads are made of. Every function treats each row by itself and in a fixed order.

use std::collections::BTreeSet;

use tokenrouter_kernels::cuda::{HeadLinear, HeadNorm, HostMatrix, MatrixKind};
use tokenrouter_kernels::{Activations, Isa, PackedMatrix, Pool};

use super::{HeadError, HeadFile, HeadKind, HeadProblem, HeadTensor, HeadValues};

/// PyTorch's default for LayerNorm and BatchNorm.
pub(super) const EPSILON: f32 = 1e-5;

/// Takes tensors out of a file by name and notes which were used.
pub(super) struct Reader<'a> {
    file: &'a HeadFile,
    used: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a HeadFile) -> Self {
        Self { file, used: BTreeSet::new() }
    }

    pub(super) fn kind(&self) -> HeadKind {
        self.file.kind
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.file.tensors.contains_key(name)
    }

    /// The dimensions of a matrix, none of them 0.
    pub(super) fn matrix_shape(&self, name: &str) -> Result<(usize, usize), HeadProblem> {
        match self.find(name)?.shape[..] {
            [rows, columns] if rows > 0 && columns > 0 => Ok((rows, columns)),
            _ => Err(self.shape_problem(name, "two dimensions, none of them 0".into())),
        }
    }

    pub(super) fn shape_problem(&self, name: &str, expected: String) -> HeadProblem {
        let shape = self.file.tensors.get(name).map(|tensor| tensor.shape.clone()).unwrap_or_default();
        HeadProblem::Shape { tensor: name.to_owned(), shape, expected }
    }

    fn find(&self, name: &str) -> Result<&'a HeadTensor, HeadProblem> {
        let tensor = self.file.tensors.get(name);
        tensor.ok_or_else(|| HeadProblem::Missing { tensor: name.to_owned(), kind: self.kind() })
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<(&'a HeadTensor, Vec<f32>), HeadProblem> {
        let tensor = self.find(name)?;
        let expected = shape.iter().product::<usize>();
        if tensor.shape != shape || tensor.count() != expected {
            return Err(self.shape_problem(name, format!("{shape:?} and {expected} values")));
        }
        let values = tensor.to_f32();
        check_values(name, &values, f32::is_finite, "a finite number")?;
        self.used.insert(name.to_owned());
        Ok((tensor, values))
    }

    pub(super) fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, HeadProblem> {
        self.take(name, shape).map(|(_, values)| values)
    }

    /// `prefix.weight` as `[n, k]`, in the file's own precision.
    pub(super) fn matrix(&mut self, prefix: &str, n: usize, k: usize) -> Result<PackedMatrix, HeadProblem> {
        let name = format!("{prefix}.weight");
        let (tensor, values) = self.take(&name, &[n, k])?;
        let packed = match tensor.values {
            HeadValues::F32(_) => PackedMatrix::from_f32(n, k, &values),
            HeadValues::Bf16(_) => PackedMatrix::bf16_from_f32(n, k, &values),
        };
        packed.map_err(|error| self.shape_problem(&name, error.to_string()))
    }

    /// `prefix.weight` and `prefix.bias`.
    pub(super) fn linear(&mut self, prefix: &str, n: usize, k: usize) -> Result<Linear, HeadProblem> {
        Ok(Linear { weight: self.matrix(prefix, n, k)?, bias: self.values(&format!("{prefix}.bias"), &[n])? })
    }

    pub(super) fn norm(&mut self, prefix: &str, width: usize) -> Result<LayerNorm, HeadProblem> {
        let gain = self.values(&format!("{prefix}.weight"), &[width])?;
        Ok(LayerNorm { gain, bias: self.values(&format!("{prefix}.bias"), &[width])? })
    }

    /// Refuses tensors that nobody took.
    pub(super) fn finish(self) -> Result<(), HeadProblem> {
        match self.file.tensors.keys().find(|name| !self.used.contains(*name)) {
            Some(name) => Err(HeadProblem::Unknown { tensor: name.clone(), kind: self.file.kind }),
            None => Ok(()),
        }
    }
}

pub(super) fn check_values(
    name: &str,
    values: &[f32],
    ok: impl Fn(f32) -> bool,
    expected: &'static str,
) -> Result<(), HeadProblem> {
    match values.iter().position(|value| !ok(*value)) {
        Some(index) => Err(HeadProblem::Value { tensor: name.to_owned(), index, value: values[index], expected }),
        None => Ok(()),
    }
}

/// Number of rows of an input, which must be whole ones.
pub(super) fn rows(what: &'static str, values: &[f32], width: usize) -> Result<usize, HeadError> {
    let rows = values.len() / width;
    if rows * width == values.len() {
        return Ok(rows);
    }
    Err(HeadError::Input { what, got: values.len(), expected: format!("whole rows of {width}") })
}

pub(super) fn check_rows(what: &'static str, values: &[f32], rows: usize, width: usize) -> Result<(), HeadError> {
    if values.len() == rows * width {
        return Ok(());
    }
    Err(HeadError::Input { what, got: values.len(), expected: format!("{rows} rows of {width}") })
}

/// What products run on: the calling thread.
#[derive(Debug)]
pub(super) struct Cpu {
    isa: Isa,
    pool: Pool,
    /// Dense products take no quantised activations.
    unused: Activations,
}

impl Default for Cpu {
    fn default() -> Self {
        Self { isa: Isa::detect(), pool: Pool::caller(), unused: Activations::default() }
    }
}

impl Cpu {
    /// `out = W x` for every row, `out` being `[rows, stride]` and filled from column `offset` on.
    pub(super) fn multiply(
        &self,
        weight: &PackedMatrix,
        x: &[f32],
        out: &mut [f32],
        place: (usize, usize),
    ) -> Result<(), HeadError> {
        Ok(weight.multiply(self.isa, &self.pool, (x, &self.unused), out, place)?)
    }
}

/// A matrix in the form that devices take, its columns padded with zeros to a multiple of 8.
pub(super) fn to_host(weight: &PackedMatrix) -> Result<HostMatrix, tokenrouter_kernels::Error> {
    let (n, k) = (weight.n(), weight.k());
    let padded = k.next_multiple_of(8);
    let mut values = vec![0.0; n * padded];
    for (row, out) in values.chunks_exact_mut(padded).enumerate() {
        weight.row(row, &mut out[..k]);
    }
    HostMatrix::from_f32(MatrixKind::F32, n, padded, &values)
}

/// Rows as one layer, in the form that devices take.
pub(super) fn rows_to_host(rows: &[OutputRow]) -> Result<HeadLinear, tokenrouter_kernels::Error> {
    let width = rows.first().map_or(0, |row| row.weight.len());
    let values: Vec<f32> = rows.iter().flat_map(|row| &row.weight).copied().collect();
    let weight = to_host(&PackedMatrix::from_f32(rows.len(), width, &values)?)?;
    Ok(HeadLinear { weight, scale: None, shift: rows.iter().map(|row| row.bias).collect() })
}

/// `W x + b`.
#[derive(Debug)]
pub(super) struct Linear {
    weight: PackedMatrix,
    bias: Vec<f32>,
}

impl Linear {
    pub(super) fn outputs(&self) -> usize {
        self.weight.n()
    }

    pub(super) fn to_host(&self) -> Result<HeadLinear, tokenrouter_kernels::Error> {
        Ok(HeadLinear { weight: to_host(&self.weight)?, scale: None, shift: self.bias.clone() })
    }

    /// Replaces `out` by `[rows, outputs]`.
    pub(super) fn forward(&self, cpu: &Cpu, x: &[f32], out: &mut Vec<f32>) -> Result<(), HeadError> {
        out.resize(x.len() / self.weight.k() * self.outputs(), 0.0);
        self.forward_into(cpu, x, out, (self.outputs(), 0))
    }

    /// Fills columns `offset..offset + outputs` of `out`, `[rows, stride]`.
    pub(super) fn forward_into(
        &self,
        cpu: &Cpu,
        x: &[f32],
        out: &mut [f32],
        (stride, offset): (usize, usize),
    ) -> Result<(), HeadError> {
        cpu.multiply(&self.weight, x, out, (stride, offset))?;
        for row in out.chunks_exact_mut(stride) {
            for (out, bias) in row[offset..].iter_mut().zip(&self.bias) {
                *out += bias;
            }
        }
        Ok(())
    }
}

/// Normalises a row to mean 0 and variance 1, then scales and shifts it.
#[derive(Debug)]
pub(super) struct LayerNorm {
    gain: Vec<f32>,
    bias: Vec<f32>,
}

impl LayerNorm {
    pub(super) fn to_host(&self) -> HeadNorm {
        HeadNorm { weight: self.gain.clone(), bias: self.bias.clone() }
    }

    pub(super) fn forward(&self, row: &[f32], out: &mut [f32]) {
        let count = row.len() as f64;
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
        let (mean, scale) = (mean as f32, 1.0 / (variance as f32 + EPSILON).sqrt());
        for (((out, x), gain), bias) in out.iter_mut().zip(row).zip(&self.gain).zip(&self.bias) {
            *out = (x - mean) * scale * gain + bias;
        }
    }

    /// Replaces `out` by the normalised rows of `x`.
    pub(super) fn forward_rows(&self, x: &[f32], out: &mut Vec<f32>) {
        out.resize(x.len(), 0.0);
        let width = self.gain.len();
        for (row, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            self.forward(row, out);
        }
    }
}

/// One output. A matrix of one row would be padded to a tile of 16.
#[derive(Debug)]
pub(super) struct OutputRow {
    pub(super) weight: Vec<f32>,
    pub(super) bias: f32,
}

impl OutputRow {
    pub(super) fn forward(&self, x: &[f32]) -> f32 {
        // Sixteen sums side by side, so that the compiler can use vectors and the order is still fixed.
        let mut sums = [0f32; 16];
        for (weight, x) in self.weight.chunks(16).zip(x.chunks(16)) {
            for ((sum, weight), x) in sums.iter_mut().zip(weight).zip(x) {
                *sum += weight * x;
            }
        }
        sums.iter().sum::<f32>() + self.bias
    }
}

/// `1 / (1 + e^-x)`.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Softmax of a row, in place.
pub(super) fn softmax(row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let sum = row.iter().sum::<f32>();
    row.iter_mut().for_each(|x| *x /= sum);
}

/// Exact GELU, `x * Phi(x)`, in place.
pub(super) fn gelu(values: &mut [f32]) {
    for x in values {
        *x *= 0.5 * (1.0 + erf(*x * std::f32::consts::FRAC_1_SQRT_2));
    }
}

/// The error function, as a quotient of polynomials in `x^2` that the compiler turns into vector code. It is within 6e-7,
/// which the tests check.
#[inline]
#[allow(clippy::excessive_precision, reason = "coefficients as fitted")]
fn erf(x: f32) -> f32 {
    const P: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906_3e-4,
        -2.954_599_8e-3,
        -1.609_603_3e-2,
    ];
    const Q: [f32; 5] = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2];
    // Beyond 4 it is 1 in single precision.
    let x = x.clamp(-4.0, 4.0);
    let square = x * x;
    let p = P.iter().fold(0.0, |sum, coefficient| sum * square + coefficient);
    let q = Q.iter().fold(0.0, |sum, coefficient| sum * square + coefficient);
    x * p / q
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_is_close_to_another_implementation() {
        for step in -60_000..=60_000 {
            let x = step as f32 * 1e-4;
            let exact = candle_core::cpu::erf::erf_f64(f64::from(x));
            assert!((f64::from(erf(x)) - exact).abs() < 6e-7, "erf({x}) = {}, expected {exact}", erf(x));
        }
        assert!(erf(f32::NAN).is_nan());
        assert_eq!((erf(f32::INFINITY), erf(f32::NEG_INFINITY)), (erf(4.0), -erf(4.0)));
    }

    #[test]
    fn softmax_and_sigmoid_bear_large_values() {
        let mut row = [1000.0, 999.0, -1000.0];
        softmax(&mut row);
        let expected = 1.0 / (1.0 + (-1f32).exp());
        assert!((row[0] - expected).abs() < 1e-6 && (row.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{row:?}");
        assert_eq!((sigmoid(1000.0), sigmoid(-1000.0), sigmoid(0.0)), (1.0, 0.0, 0.5));
    }

    #[test]
    fn a_long_row_sums_every_column_once() {
        for width in [1, 15, 16, 17, 100] {
            let row = OutputRow { weight: (0..width).map(|i| i as f32).collect(), bias: 0.5 };
            let x = vec![2.0; width];
            assert_eq!(row.forward(&x), (width * (width - 1)) as f32 + 0.5);
        }
    }
}
