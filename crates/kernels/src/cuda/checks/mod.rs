//! Every kernel against a reference on the host: in the tests on an emulated device, and by `trbench bench-kernels` on the
//! GPU that is there.
//!
//! References are written from the definitions, in f64 where rounding matters, and share no code with the kernels.

mod attention;
mod elementwise;
mod heads;
mod model;
mod product;
mod signals;

use super::memory::Device;
use crate::{Error, KvDtype};

/// One kernel over all its cases.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// The kernel.
    pub kernel: &'static str,
    /// Cases.
    pub cases: usize,
    /// The largest error of a case, as a part of what is allowed there.
    pub worst: f64,
    /// The first case that failed.
    pub failure: Option<String>,
}

/// Checks all kernels.
pub fn all(device: &Device) -> Result<Vec<Check>, Error> {
    let parts = [
        elementwise::checks(device)?,
        product::checks(device)?,
        attention::checks(device)?,
        signals::checks(device)?,
        heads::checks(device)?,
        model::checks(device)?,
    ];
    Ok(parts.into_iter().flatten().collect())
}

impl Check {
    fn new(kernel: &'static str) -> Self {
        Self { kernel, cases: 0, worst: 0.0, failure: None }
    }

    /// A case: `got` against `want`, each within `allowed` of the larger of 1 and its size.
    fn close(&mut self, case: &str, got: &[f32], want: &[f64], allowed: f64) {
        self.cases += 1;
        if got.len() != want.len() {
            return self.fail(format!("{case}: {} numbers instead of {}", got.len(), want.len()));
        }
        for (index, (got, want)) in got.iter().zip(want).enumerate() {
            let error = (f64::from(*got) - want).abs() / want.abs().max(1.0) / allowed;
            if error.is_nan() || error > 1.0 {
                self.fail(format!("{case}: number {index} is {got} instead of {want}"));
            }
            self.worst = self.worst.max(if error.is_nan() { f64::INFINITY } else { error });
        }
    }

    /// A case: equal to the last bit.
    fn same<T: PartialEq + std::fmt::Debug>(&mut self, case: &str, got: &[T], want: &[T]) {
        self.cases += 1;
        if got.len() != want.len() {
            return self.fail(format!("{case}: {} values instead of {}", got.len(), want.len()));
        }
        if let Some(index) = (0..got.len()).find(|index| got[*index] != want[*index]) {
            self.fail(format!("{case}: value {index} is {:?} instead of {:?}", got[index], want[index]));
        }
    }

    fn fail(&mut self, failure: String) {
        self.worst = f64::INFINITY;
        self.failure.get_or_insert(failure);
    }
}

/// Numbers that look random and are always the same.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// How much a number may be off that was stored in such a type.
fn rounding(bytes: usize, bf16: bool) -> f64 {
    match (bytes, bf16) {
        (4, _) => 1e-5,
        (_, false) => 1e-3,
        (_, true) => 8e-3,
    }
}

fn kv_rounding(dtype: KvDtype) -> f64 {
    rounding(dtype.bytes(), dtype == KvDtype::Bf16)
}

/// Floats from the bytes of an array of a type.
fn decode(bytes: &[u8], dtype: KvDtype) -> Vec<f32> {
    let pairs = || bytes.as_chunks::<2>().0.iter();
    match dtype {
        KvDtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        KvDtype::F16 => pairs().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
        KvDtype::Bf16 => pairs().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect(),
    }
}

/// Bytes of floats in a type.
fn encode(values: &[f32], dtype: KvDtype) -> Vec<u8> {
    match dtype {
        KvDtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        KvDtype::F16 => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
        KvDtype::Bf16 => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
    }
}

const KV_DTYPES: [KvDtype; 3] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16];

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a test says what it skipped")]
mod tests {
    use super::*;

    fn assert_all(device: &Device) {
        for check in all(device).expect("kernels run") {
            println!("{}: {} cases, worst {:.3} of what is allowed", check.kernel, check.cases, check.worst);
            assert!(check.cases > 0);
            assert_eq!(check.failure, None, "{}", check.kernel);
        }
    }

    #[cfg(feature = "cuda-emulation")]
    #[test]
    fn emulated_kernels_match_their_references() {
        assert_all(&Device::emulated());
    }

    #[test]
    fn kernels_of_the_gpu_match_their_references() {
        match Device::cuda(0) {
            Ok(device) => assert_all(&device),
            Err(error) => println!("skipped: {error}"),
        }
    }

    #[test]
    fn a_wrong_number_fails_a_check() {
        let mut check = Check::new("test");
        check.close("equal", &[1.0, 2.0], &[1.0, 2.0], 1e-6);
        assert_eq!((check.cases, check.worst, check.failure.clone()), (1, 0.0, None));
        for (got, want) in [(1.1, 1.0), (f32::NAN, 1.0), (1.0, f64::NAN)] {
            let mut check = check.clone();
            check.close("unequal", &[got], &[want], 1e-3);
            assert!(check.failure.is_some() && check.worst > 1.0);
        }
        check.same("bits", &[1, 2], &[1, 3]);
        assert!(check.failure.expect("fails").contains("value 1"));
    }
}
