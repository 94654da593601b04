//! Dequantisation in the form of `dequantize_row_*` in ggml's `ggml-quants.c`: loops over bytes that write weights in
//! order. Independent of how the kernels unpack blocks.

use half::f16;
use tokenrouter_kernels::Format;

/// Random blocks. `half` makes 16-bit scales of numbers in -1..1.
pub(crate) fn random_blocks(format: Format, count: usize, seed: u64, half: impl Fn(f32) -> u16) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 32
    };
    let halves: &[usize] = match format {
        Format::F32 | Format::Mxfp4 => &[],
        Format::F16 | Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs => &[0],
        Format::Bf16 => &[],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
    };
    let mut bytes = Vec::new();
    for _ in 0..count {
        let mut block: Vec<u8> = (0..format.bytes()).map(|_| next() as u8).collect();
        let mut signed = || (next() as f32 / (1u64 << 31) as f32) - 1.0;
        for at in halves {
            block[*at..at + 2].copy_from_slice(&half(signed()).to_le_bytes());
        }
        match format {
            Format::F32 => block = signed().to_le_bytes().to_vec(),
            Format::Bf16 => block = half::bf16::from_f32(signed()).to_le_bytes().to_vec(),
            // Exponents of all weights but the largest ones.
            Format::Mxfp4 => block[0] = block[0] % 20 + 110,
            _ => {}
        }
        bytes.extend(block);
    }
    bytes
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The weights of blocks.
pub(crate) fn dequantize(format: Format, bytes: &[u8]) -> Vec<f32> {
    let mut y = Vec::new();
    for block in bytes.chunks(format.bytes()) {
        match format {
            Format::F32 => y.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
            Format::F16 => y.push(half(block, 0)),
            Format::Bf16 => y.push(half::bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            Format::Q4_0 => nibbles(&mut y, &block[2..], |q, _| (i32::from(q) - 8) as f32 * half(block, 0)),
            Format::Q4_1 => nibbles(&mut y, &block[4..], |q, _| f32::from(q) * half(block, 0) + half(block, 2)),
            Format::Q5_0 => {
                let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
                nibbles(&mut y, &block[6..], |q, i| {
                    (i32::from(q) + (high >> i & 1) as i32 * 16 - 16) as f32 * half(block, 0)
                });
            }
            Format::Q5_1 => {
                let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
                nibbles(&mut y, &block[8..], |q, i| {
                    (u32::from(q) + (high >> i & 1) * 16) as f32 * half(block, 0) + half(block, 2)
                });
            }
            Format::Q8_0 => y.extend(block[2..].iter().map(|q| f32::from(*q as i8) * half(block, 0))),
            Format::Q2K => q2k(&mut y, block),
            Format::Q3K => q3k(&mut y, block),
            Format::Q4K => q4k(&mut y, block),
            Format::Q5K => q5k(&mut y, block),
            Format::Q6K => q6k(&mut y, block),
            Format::Iq4Nl => nibbles(&mut y, &block[2..], |q, _| half(block, 0) * IQ4[usize::from(q)]),
            Format::Iq4Xs => iq4xs(&mut y, block),
            Format::Mxfp4 => {
                let scale = 2f64.powi(i32::from(block[0]) - 128) as f32;
                nibbles(&mut y, &block[1..], |q, _| FP4[usize::from(q)] * scale);
            }
        }
    }
    y
}

const IQ4: [f32; 16] = [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];
const FP4: [f32; 16] = [0., 1., 2., 3., 4., 6., 8., 12., 0., -1., -2., -3., -4., -6., -8., -12.];

/// 16 weights of low nibbles, then 16 of high ones.
fn nibbles(y: &mut Vec<f32>, qs: &[u8], weight: impl Fn(u8, usize) -> f32) {
    y.extend(qs[..16].iter().enumerate().map(|(i, q)| weight(q & 15, i)));
    y.extend(qs[..16].iter().enumerate().map(|(i, q)| weight(q >> 4, i + 16)));
}

fn q2k(y: &mut Vec<f32>, block: &[u8]) {
    let (scales, mut q, d, min) = (&block[..16], &block[16..80], half(block, 80), half(block, 82));
    let mut is = 0;
    for _ in 0..2 {
        for shift in [0, 2, 4, 6] {
            for l in [0..16, 16..32] {
                let (dl, ml) = (d * f32::from(scales[is] & 15), min * f32::from(scales[is] >> 4));
                is += 1;
                y.extend(q[l].iter().map(|q| dl * f32::from(q >> shift & 3) - ml));
            }
        }
        q = &q[32..];
    }
}

fn q3k(y: &mut Vec<f32>, block: &[u8]) {
    const KMASK1: u32 = 0x0303_0303;
    const KMASK2: u32 = 0x0f0f_0f0f;
    let (hm, mut q, d) = (&block[..32], &block[32..96], half(block, 108));
    let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let aux = [word(96), word(100), word(104)];
    let scales: Vec<u8> = [
        aux[0] & KMASK2 | (aux[2] & KMASK1) << 4,
        aux[1] & KMASK2 | (aux[2] >> 2 & KMASK1) << 4,
        aux[0] >> 4 & KMASK2 | (aux[2] >> 4 & KMASK1) << 4,
        aux[1] >> 4 & KMASK2 | (aux[2] >> 6 & KMASK1) << 4,
    ]
    .iter()
    .flat_map(|word| word.to_le_bytes())
    .collect();
    let (mut is, mut m) = (0, 1u8);
    for _ in 0..2 {
        for shift in [0, 2, 4, 6] {
            for l in [0..16, 16..32] {
                let dl = d * (f32::from(scales[is]) - 32.0);
                is += 1;
                y.extend(l.map(|l| {
                    let low = i32::from(q[l] >> shift & 3);
                    dl * (low - if hm[l] & m != 0 { 0 } else { 4 }) as f32
                }));
            }
            m = m.wrapping_shl(1);
        }
        q = &q[32..];
    }
}

fn scale_min_k4(j: usize, q: &[u8]) -> (f32, f32) {
    let (d, m) = if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        ((q[j + 4] & 0xF) | ((q[j - 4] >> 6) << 4), (q[j + 4] >> 4) | ((q[j] >> 6) << 4))
    };
    (f32::from(d), f32::from(m))
}

fn q4k(y: &mut Vec<f32>, block: &[u8]) {
    let (d, min) = (half(block, 0), half(block, 2));
    for (j, q) in block[16..].chunks(32).enumerate() {
        let (sc, m) = scale_min_k4(2 * j, &block[4..16]);
        y.extend(q.iter().map(|q| d * sc * f32::from(q & 0xF) - min * m));
        let (sc, m) = scale_min_k4(2 * j + 1, &block[4..16]);
        y.extend(q.iter().map(|q| d * sc * f32::from(q >> 4) - min * m));
    }
}

fn q5k(y: &mut Vec<f32>, block: &[u8]) {
    let (d, min, qh) = (half(block, 0), half(block, 2), &block[16..48]);
    let (mut u1, mut u2) = (1u8, 2u8);
    for (j, ql) in block[48..].chunks(32).enumerate() {
        let (sc, m) = scale_min_k4(2 * j, &block[4..16]);
        y.extend((0..32).map(|l| d * sc * f32::from((ql[l] & 0xF) + if qh[l] & u1 != 0 { 16 } else { 0 }) - min * m));
        let (sc, m) = scale_min_k4(2 * j + 1, &block[4..16]);
        y.extend((0..32).map(|l| d * sc * f32::from((ql[l] >> 4) + if qh[l] & u2 != 0 { 16 } else { 0 }) - min * m));
        u1 = u1.wrapping_shl(2);
        u2 = u2.wrapping_shl(2);
    }
}

fn q6k(y: &mut Vec<f32>, block: &[u8]) {
    let d = half(block, 208);
    for n in 0..2 {
        let (ql, qh, sc) = (&block[64 * n..], &block[128 + 32 * n..], &block[192 + 8 * n..]);
        let mut part = [0f32; 128];
        for l in 0..32 {
            let is = l / 16;
            let q1 = ((ql[l] & 0xF) | ((qh[l] & 3) << 4)) as i8 - 32;
            let q2 = ((ql[l + 32] & 0xF) | (((qh[l] >> 2) & 3) << 4)) as i8 - 32;
            let q3 = ((ql[l] >> 4) | (((qh[l] >> 4) & 3) << 4)) as i8 - 32;
            let q4 = ((ql[l + 32] >> 4) | (((qh[l] >> 6) & 3) << 4)) as i8 - 32;
            for (at, q) in [q1, q2, q3, q4].into_iter().enumerate() {
                part[l + 32 * at] = d * f32::from(sc[is + 2 * at] as i8) * f32::from(q);
            }
        }
        y.extend(part);
    }
}

fn iq4xs(y: &mut Vec<f32>, block: &[u8]) {
    let (d, high) = (half(block, 0), u16::from_le_bytes([block[2], block[3]]));
    for ib in 0..8 {
        let ls = (block[4 + ib / 2] >> (4 * (ib % 2)) & 0xf) as i32 | ((high >> (2 * ib) & 3) as i32) << 4;
        let dl = d * (ls - 32) as f32;
        nibbles(y, &block[8 + 16 * ib..], |q, _| dl * IQ4[usize::from(q)]);
    }
}
