//! Random streams: one per routing state, so that runs with other thresholds see the same draws (common random numbers).

/// xoshiro256++ (Blackman and Vigna, 2019), seeded through splitmix64.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    state: [u64; 4],
}

impl Stream {
    /// Stream `index` of `seed`.
    pub(crate) fn new(seed: u64, index: u64) -> Self {
        let mut mixed = seed ^ index.wrapping_mul(0xA076_1D64_78BD_642F);
        let state = std::array::from_fn(|_| {
            mixed = mixed.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = mixed;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        });
        Self { state }
    }

    fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `[0, 1)` with 53 bits.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in `0..bound`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u32
    }

    /// Standard normal (polar method).
    pub(crate) fn normal(&mut self) -> f64 {
        loop {
            let (u, v) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let s = u * u + v * v;
            if s > 0.0 && s < 1.0 {
                return u * (-2.0 * s.ln() / s).sqrt();
            }
        }
    }

    /// Gamma with the given shape and scale one (Marsaglia and Tsang, 2000).
    pub(crate) fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = self.uniform().max(f64::MIN_POSITIVE).powf(1.0 / shape);
            return self.gamma(shape + 1.0) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.uniform().max(f64::MIN_POSITIVE).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_right() {
        let mut stream = Stream::new(7, 3);
        let draws = 200_000;
        let (mut u, mut n, mut n2, mut g) = (0.0, 0.0, 0.0, 0.0);
        for _ in 0..draws {
            u += stream.uniform();
            let x = stream.normal();
            n += x;
            n2 += x * x;
            g += stream.gamma(2.5);
        }
        let mean = |sum: f64| sum / f64::from(draws);
        assert!((mean(u) - 0.5).abs() < 0.003 && mean(n).abs() < 0.01);
        assert!((mean(n2) - 1.0).abs() < 0.02 && (mean(g) - 2.5).abs() < 0.02);
    }
}
