//! Products with weights of every kind.

use super::super::matrix::{ActivationType, DeviceMatrix, HostMatrix};
use super::super::memory::Device;
use super::super::ops::{Activations, ROW_PADDING};
use super::elementwise::{kv_dtype, matrices};
use super::{Check, Numbers, decode, encode};
use crate::Error;

pub(super) fn checks(device: &Device) -> Result<Vec<Check>, Error> {
    let (mut plain, mut tensor, mut alone) =
        (Check::new("gemm"), Check::new("gemm_tensor"), Check::new("rows do not depend on their batch"));
    let mut numbers = Numbers(7);
    // Tails of tiles along rows, columns and k; shapes that no tile divides go to the plain kernel.
    for (n, k) in [(16, 16), (5, 40), (48, 64), (33, 96), (160, 1056)] {
        for host in matrices(&mut numbers, n, k)? {
            let matrix = DeviceMatrix::upload(device, &host)?;
            let mut kinds = vec![ActivationType::F32];
            kinds.extend((matrix.activation() != ActivationType::F32).then(|| matrix.activation()));
            for kind in kinds {
                let check = if kind == ActivationType::F32 { &mut plain } else { &mut tensor };
                let most = 65;
                let inputs = numbers.floats(most * k);
                let all = product(device, (&inputs, kind, &matrix), most)?;
                for rows in [1, 16, 17, 33, most] {
                    let got = if rows == most { all.clone() } else { product(device, (&inputs, kind, &matrix), rows)? };
                    let case = format!("{:?}, {rows} x {n} x {k}", host.kind());
                    alone.same(&case, &got, &all[..rows * n]);
                }
                // Sums of k products: their rounding grows with k.
                let allowed = 1e-6 * k as f64;
                let inputs = decode(&encode(&inputs, kv_dtype(kind)), kv_dtype(kind));
                check.close(&format!("{:?}, {n} x {k}", host.kind()), &all, &reference(&inputs, &host), allowed);
            }
        }
    }
    Ok(vec![plain, tensor, alone])
}

fn product(
    device: &Device,
    (inputs, kind, matrix): (&[f32], ActivationType, &DeviceMatrix),
    rows: usize,
) -> Result<Vec<f32>, Error> {
    let k = matrix.k();
    let a = Activations::new(device, kind, rows, k)?;
    // What lies in the padding must not matter.
    let mut padded = vec![f32::NAN; rows.next_multiple_of(ROW_PADDING) * k];
    padded[..rows * k].copy_from_slice(&inputs[..rows * k]);
    a.bytes.write(0, &encode(&padded, kv_dtype(kind)))?;
    let stride = matrix.n() + 3;
    let out = device.buffer::<f32>(rows * stride)?;
    device.multiply(&a, matrix, rows, (out.all(), stride))?;
    let out = out.to_vec()?;
    Ok(out.chunks_exact(stride).flat_map(|row| &row[..matrix.n()]).copied().collect())
}

fn reference(inputs: &[f32], matrix: &HostMatrix) -> Vec<f64> {
    let weights = matrix.to_f32();
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
    inputs.chunks_exact(matrix.k()).flat_map(|x| weights.chunks_exact(matrix.k()).map(move |w| dot(x, w))).collect()
}
