//! Keyed randomness: a draw is a function of (seed, request, position, purpose), never of a generator's state, so that
//! no schedule can change it (invariant 7).

/// What a draw decides. Draws for different purposes at the same position are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Choice of the next token.
    Sample = 1,
    /// Choice of the next model.
    Route = 2,
    /// Token ids of the emulated runner.
    EmulatedToken = 3,
    /// Prompts of a random workload.
    Workload = 4,
    /// Gaps between arrivals.
    Arrival = 5,
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection whose output bits all depend on all input bits.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// 64 bits that depend on nothing but the arguments.
pub fn draw_u64(seed: u64, key: u64, position: u64, purpose: Purpose) -> u64 {
    let mut state = mix(seed.wrapping_add(GOLDEN.wrapping_mul(purpose as u64)));
    state = mix(state ^ key.wrapping_mul(GOLDEN).wrapping_add(1));
    mix(state.wrapping_add(position.wrapping_mul(GOLDEN)))
}

/// Uniform in `[0, 1)`, with 53 random bits.
pub fn draw_unit(seed: u64, key: u64, position: u64, purpose: Purpose) -> f64 {
    (draw_u64(seed, key, position, purpose) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_over_positions_and_over_requests() {
        // Chi-square over 64 cells; the 0.9999 quantile for 63 degrees of freedom is about 113.
        for by_position in [true, false] {
            let mut cells = [0f64; 64];
            let draws = 64_000u64;
            for i in 0..draws {
                let (key, position) = if by_position { (7, i) } else { (i, 7) };
                cells[(draw_unit(3, key, position, Purpose::Route) * 64.0) as usize] += 1.0;
            }
            let expected = draws as f64 / 64.0;
            let chi2: f64 = cells.iter().map(|n| (n - expected).powi(2) / expected).sum();
            assert!(chi2 < 113.0, "chi-square {chi2}");
        }
    }

    #[test]
    fn purposes_are_independent() {
        let same = (0..1000)
            .filter(|i| (draw_unit(1, 1, *i, Purpose::Route) < 0.5) == (draw_unit(1, 1, *i, Purpose::Sample) < 0.5))
            .count();
        assert!((400..600).contains(&same), "{same}");
    }
}
