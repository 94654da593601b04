//! From logits to a token, and to signals.

use tokenrouter_kernels::argmax;

use crate::keyed::{Purpose, draw_unit};
use crate::request::Request;
use crate::routing::Signals;

/// Entropy in nats of `softmax(logits)`: `log Z - sum(p * x)` with the maximum taken out.
pub(crate) fn entropy(logits: &[f32]) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (mut z, mut weighted) = (0f64, 0f64);
    for logit in logits {
        let shifted = logit - max;
        let e = f64::from(shifted.exp());
        z += e;
        if e > 0.0 {
            weighted += e * f64::from(shifted);
        }
    }
    ((z.ln() - weighted / z) as f32).max(0.0)
}

pub(crate) fn signals(logits: &[f32], needs: crate::routing::SignalNeeds) -> Signals {
    Signals { entropy: if needs.entropy { entropy(logits) } else { 0.0 } }
}

/// The next token of `request` at `position` of its committed stream. Randomness is keyed, so the result depends on
/// the logits and the request only.
pub(crate) fn sample(logits: &[f32], request: &Request, position: usize) -> u32 {
    let params = &request.sampling;
    if params.temperature <= 0.0 || params.top_k == 1 {
        return argmax(logits);
    }
    // Candidates by falling logit, ties by rising index: the order must not depend on a sort's whims.
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by_rank = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if params.top_k > 0 && params.top_k < order.len() {
        order.select_nth_unstable_by(params.top_k - 1, by_rank);
        order.truncate(params.top_k);
    }
    order.sort_unstable_by(by_rank);
    let max = logits[order[0] as usize];
    let weight = |id: u32| f64::from(((logits[id as usize] - max) / params.temperature).exp());
    let total: f64 = order.iter().map(|id| weight(*id)).sum();
    let mut kept = 0.0;
    let nucleus = order
        .iter()
        .position(|id| {
            kept += weight(*id);
            kept >= f64::from(params.top_p) * total
        })
        .unwrap_or(order.len() - 1);
    let mut left = draw_unit(params.seed, request.key, position as u64, Purpose::Sample) * kept;
    for id in &order[..=nucleus] {
        left -= weight(*id);
        if left < 0.0 {
            return *id;
        }
    }
    order[nucleus]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::SamplingParams;

    fn request(temperature: f32, top_k: usize, top_p: f32) -> Request {
        let sampling = SamplingParams { temperature, top_k, top_p, seed: 11, ..SamplingParams::default() };
        Request { prompt: vec![1], sampling, key: 5 }
    }

    #[test]
    fn entropy_matches_closed_forms() {
        assert!((entropy(&[0.5; 1000]) - 1000f32.ln()).abs() < 1e-4);
        assert_eq!(entropy(&[0.0, -1e30]), 0.0);
        let p = [0.7f32, 0.2, 0.1];
        let want: f32 = p.iter().map(|p| -p * p.ln()).sum();
        assert!((entropy(&p.map(f32::ln)) - want).abs() < 1e-6);
    }

    #[test]
    fn sampled_frequencies_match_the_tempered_truncated_distribution() {
        let p = [0.5f32, 0.3, 0.15, 0.05];
        let logits = p.map(f32::ln);
        for (top_k, top_p, want) in [
            (0, 1.0, vec![0.5, 0.3, 0.15, 0.05]),
            (2, 1.0, vec![0.625, 0.375, 0.0, 0.0]),
            (0, 0.7, vec![0.625, 0.375, 0.0, 0.0]),
        ] {
            let request = request(1.0, top_k, top_p);
            let mut counts = [0f64; 4];
            for position in 0..20_000 {
                counts[sample(&logits, &request, position) as usize] += 1.0 / 20_000.0;
            }
            for (got, want) in counts.iter().zip(want) {
                assert!((got - want).abs() < 0.018, "{counts:?}");
            }
        }
    }

    #[test]
    fn greedy_takes_the_first_of_equal_logits() {
        assert_eq!(sample(&[1.0, 3.0, 3.0, f32::NAN], &request(0.0, 0, 1.0), 0), 1);
    }
}
