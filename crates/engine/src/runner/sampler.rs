//! From logits to a token.
//!
//! The draw is keyed by (seed, request, position), and everything is a function of one row's logits and its request, so
//! the result depends neither on the batch nor on the schedule. No maintained sampler of the ecosystem can be keyed so:
//! candle-transformers' keeps a generator.

use tokenrouter_kernels::{Isa, SignalSet, argmax, logit_signals, softmax_weights};

use crate::runner::RunnerOptions;
use tokenrouter_core::keyed::{Purpose, draw_unit};
use tokenrouter_core::request::{Request, SamplingParams, TokenLogprobs};
use tokenrouter_core::step::{BatchRow, StepOutput};

/// Chooses tokens; keeps buffers from row to row.
#[derive(Debug)]
pub(crate) struct Sampler {
    isa: Isa,
    /// Logits from here on are not looked at.
    vocab: usize,
    /// Tokens that end a sequence.
    eos: Vec<u32>,
    /// Occurrences by token id; all 0 between rows.
    counts: Vec<u32>,
    order: Vec<u32>,
    weights: Vec<f32>,
}

/// A row of logits that was taken apart for sampling.
pub(crate) struct Candidates<'a> {
    /// Raw logits, changed by penalties.
    pub(crate) logits: &'a mut [f32],
    /// The largest raw logit's index, when it is already known.
    pub(crate) argmax: Option<u32>,
    /// Prompt and committed tokens; only read when the request has penalties.
    pub(crate) history: &'a [u32],
}

impl Sampler {
    pub(crate) fn new(options: &RunnerOptions) -> Self {
        let vocab = if options.vocab == 0 { usize::MAX } else { options.vocab };
        Self {
            isa: Isa::detect(),
            vocab,
            eos: options.eos.clone(),
            counts: Vec::new(),
            order: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Notes how likely the candidate that was chosen last is under the row's logits, as they were before penalties.
    pub(crate) fn note_logprobs(&self, row: &BatchRow, raw: &[f32], output: &mut StepOutput) {
        if let Some(token) = output.tokens.last() {
            let logprobs = self.logprobs(raw, *token, row.request.logprobs.unwrap_or_default());
            output.logprobs.push((row.id, logprobs));
        }
    }

    /// Log-probabilities of `token` and of the `count` most likely tokens under raw logits.
    pub(crate) fn logprobs(&self, raw: &[f32], token: u32, count: usize) -> TokenLogprobs {
        let raw = &raw[..self.vocab.min(raw.len())];
        let mut top = Vec::new();
        let signals = logit_signals(self.isa, raw, SignalSet { softmax: true, top_k: count }, &mut top);
        let logprob = |logit: f32| logit - signals.log_sum_exp;
        TokenLogprobs {
            token,
            logprob: raw.get(token as usize).map_or(f32::NEG_INFINITY, |logit| logprob(*logit)),
            top: top.into_iter().map(|(logit, id)| (id, logprob(logit))).collect(),
        }
    }

    /// The next token of `request` at `position` of its committed stream.
    pub(crate) fn sample(&mut self, row: Candidates<'_>, request: &Request, position: usize) -> u32 {
        let params = &request.sampling;
        let Candidates { logits, argmax: known, history } = row;
        let bound = self.vocab.min(logits.len());
        let logits = &mut logits[..bound];
        let mut changed = false;
        if position < params.min_tokens {
            for id in self.eos.iter().chain(&params.stop_token_ids) {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit = f32::NEG_INFINITY;
                    changed = true;
                }
            }
        }
        if params.has_penalties() {
            self.penalise(logits, history, request.prompt_tokens(), params);
            changed = true;
        }
        if params.temperature <= 0.0 || params.top_k == 1 {
            return match known {
                Some(id) if !changed && (id as usize) < bound => id,
                _ => argmax(logits),
            };
        }
        let draw = draw_unit(params.seed, request.key, position as u64, Purpose::Sample);
        self.draw(logits, params, draw)
    }

    /// Repetition penalty over prompt and output (as in the CTRL paper and in Hugging Face), presence and frequency
    /// penalties over the output (as in OpenAI's API).
    fn penalise(&mut self, logits: &mut [f32], history: &[u32], prompt: usize, params: &SamplingParams) {
        self.counts.resize(logits.len(), 0);
        let output = &history[prompt.min(history.len())..];
        for id in output {
            self.counts[*id as usize] += 1;
        }
        for id in history {
            let (index, seen) = (*id as usize, &mut self.counts[*id as usize]);
            // The highest bit marks a token that has been dealt with.
            if *seen & (1 << 31) != 0 {
                continue;
            }
            let times = std::mem::replace(seen, *seen | 1 << 31);
            let logit = &mut logits[index];
            *logit = if *logit > 0.0 { *logit / params.repetition_penalty } else { *logit * params.repetition_penalty };
            if times > 0 {
                *logit -= params.presence_penalty + params.frequency_penalty * times as f32;
            }
        }
        for id in history {
            self.counts[*id as usize] = 0;
        }
    }

    /// A draw from the tempered distribution after top-k, top-p and min-p.
    fn draw(&mut self, logits: &[f32], params: &SamplingParams, draw: f64) -> u32 {
        softmax_weights(self.isa, logits, params.temperature, &mut self.weights);
        let weights = &self.weights;
        let weight = |id: u32| f64::from(weights[id as usize]);
        if params.top_k == 0 && params.top_p >= 1.0 && params.min_p <= 0.0 {
            return by_weight(weights, draw).unwrap_or_else(|| argmax(logits));
        }
        let order = &mut self.order;
        order.clear();
        // min-p is relative to the most likely token, whose weight is 1.
        order.extend(
            (0..weights.len() as u32).filter(|id| weights[*id as usize] >= params.min_p.max(f32::MIN_POSITIVE)),
        );
        // Candidates by falling weight, ties by rising index: the order must not depend on a sort's whims.
        let by_rank = |a: &u32, b: &u32| weights[*b as usize].total_cmp(&weights[*a as usize]).then(a.cmp(b));
        if params.top_k > 0 && params.top_k < order.len() {
            order.select_nth_unstable_by(params.top_k - 1, by_rank);
            order.truncate(params.top_k);
            // Sums are taken in a fixed order, whatever the selection did.
            order.sort_unstable();
        }
        let mut kept: f64 = order.iter().map(|id| weight(*id)).sum();
        if params.top_p < 1.0 {
            kept = nucleus(order, f64::from(params.top_p) * kept, by_rank, weight);
        }
        let mut left = draw * kept;
        let drawn = order.iter().find(|id| {
            left -= weight(**id);
            left < 0.0
        });
        // Rounding may leave a crumb: then it is the last one.
        drawn.or(order.last()).copied().unwrap_or_else(|| argmax(logits))
    }
}

/// An index drawn in proportion to the weights; none when all are 0.
fn by_weight(weights: &[f32], draw: f64) -> Option<u32> {
    const BLOCK: usize = 256;
    let sum = |block: &[f32]| {
        let mut lanes = [0f64; 8];
        for chunk in block.chunks(8) {
            for (lane, weight) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(*weight);
            }
        }
        lanes.iter().sum::<f64>()
    };
    let total: f64 = weights.chunks(BLOCK).map(sum).sum();
    let mut left = draw * total;
    for (number, block) in weights.chunks(BLOCK).enumerate() {
        let inside = sum(block);
        if left < inside {
            let found = block.iter().position(|weight| {
                left -= f64::from(*weight);
                left < 0.0
            });
            let last = || block.iter().rposition(|weight| *weight > 0.0);
            return found.or_else(last).map(|at| (number * BLOCK + at) as u32);
        }
        left -= inside;
    }
    // Rounding left a crumb: the last token with any weight.
    weights.iter().rposition(|weight| *weight > 0.0).map(|at| at as u32)
}

/// Keeps the most likely tokens whose weights add up to `wanted`, in order of rank; returns their sum.
fn nucleus(
    order: &mut Vec<u32>,
    wanted: f64,
    by_rank: impl Fn(&u32, &u32) -> std::cmp::Ordering + Copy,
    weight: impl Fn(u32) -> f64,
) -> f64 {
    // Nearly always a few hundred tokens are enough, and sorting the vocabulary would cost more than the model's step.
    let mut sorted = 0;
    let (mut kept, mut count) = (0.0, 0);
    while kept < wanted && count < order.len() {
        if count == sorted {
            let next = if sorted == 0 { 256 } else { order.len() };
            let rest = &mut order[sorted..];
            let take = (next - sorted).min(rest.len());
            if take < rest.len() {
                rest.select_nth_unstable_by(take - 1, by_rank);
            }
            rest[..take].sort_unstable_by(by_rank);
            sorted += take;
        }
        kept += weight(order[count]);
        count += 1;
    }
    order.truncate(count.max(1));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(sampling: SamplingParams) -> Request {
        Request::new(vec![1], SamplingParams { seed: 11, ..sampling }, 5)
    }

    fn pick(logits: &[f32], request: &Request, position: usize, history: &[u32]) -> u32 {
        let mut logits = logits.to_vec();
        let row = Candidates { logits: &mut logits, argmax: None, history };
        Sampler::new(&RunnerOptions { eos: vec![3], ..RunnerOptions::default() }).sample(row, request, position)
    }

    #[test]
    fn sampled_frequencies_match_the_tempered_truncated_distribution() {
        let p = [0.5f32, 0.3, 0.15, 0.05];
        let logits = p.map(f32::ln);
        let one = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
        for (params, want) in [
            (one.clone(), [0.5, 0.3, 0.15, 0.05]),
            (SamplingParams { top_k: 2, ..one.clone() }, [0.625, 0.375, 0.0, 0.0]),
            (SamplingParams { top_p: 0.7, ..one.clone() }, [0.625, 0.375, 0.0, 0.0]),
            // A nucleus for which nothing is small enough is the most likely token.
            (SamplingParams { top_p: f32::MIN_POSITIVE, ..one.clone() }, [1.0, 0.0, 0.0, 0.0]),
            (SamplingParams { min_p: 0.2, ..one.clone() }, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0]),
            (SamplingParams { temperature: 0.5, ..one }, [0.25, 0.09, 0.0225, 0.0025].map(|p| p / 0.365)),
        ] {
            let request = request(params);
            let mut counts = [0f64; 4];
            for position in 0..20_000 {
                counts[pick(&logits, &request, position, &[]) as usize] += 1.0 / 20_000.0;
            }
            for (got, want) in counts.iter().zip(want) {
                assert!((got - want).abs() < 0.018, "{counts:?} for {:?}", request.sampling);
            }
        }
    }

    proptest! {
        /// Against a plain sort of the whole vocabulary: the same set of tokens, its weights in the same proportions.
        #[test]
        fn the_nucleus_is_that_of_a_full_sort(
            logits in prop::collection::vec(-8f32..8.0, 2..900), top_p in 0.01f32..1.0
        ) {
            let max = logits.iter().copied().fold(f32::MIN, f32::max);
            let weight = |id: u32| f64::from((logits[id as usize] - max).exp());
            let by_rank = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            let wanted = f64::from(top_p) * order.iter().map(|id| weight(*id)).sum::<f64>();
            let mut all = order.clone();
            all.sort_by(by_rank);
            let mut sum = 0.0;
            let count = all.iter().position(|id| { sum += weight(*id); sum >= wanted }).map_or(all.len(), |i| i + 1);
            let kept = nucleus(&mut order, wanted, by_rank, weight);
            prop_assert_eq!(&order, &all[..count]);
            prop_assert!((kept - all[..count].iter().map(|id| weight(*id)).sum::<f64>()).abs() < 1e-9);
        }
    }

    #[test]
    fn logprobs_are_of_the_raw_softmax_over_the_common_vocabulary() {
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(|p| p.ln() + 7.0);
        let sampler = Sampler::new(&RunnerOptions { vocab: 3, ..RunnerOptions::default() });
        let got = sampler.logprobs(&logits, 2, 2);
        let want = |p: f32| (p / 0.95).ln();
        assert!((got.logprob - want(0.15)).abs() < 1e-5 && got.token == 2, "{got:?}");
        assert_eq!(got.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1]);
        assert!((got.top[0].1 - want(0.5)).abs() < 1e-5 && (got.top[1].1 - want(0.3)).abs() < 1e-5);
    }

    #[test]
    fn greedy_takes_the_first_of_equal_logits() {
        assert_eq!(pick(&[1.0, 3.0, 3.0, f32::NAN], &request(SamplingParams::default()), 0, &[]), 1);
    }

    #[test]
    fn penalties_act_once_per_token_or_per_occurrence() {
        let logits = [2.0f32, 1.9, -1.0, 1.45];
        let with = |params: SamplingParams, history: &[u32]| pick(&logits, &request(params), 9, history);
        let base = SamplingParams::default();
        // The prompt is history[..1]: repetition counts it, presence and frequency do not.
        let repetition = SamplingParams { repetition_penalty: 1.2, ..base.clone() };
        assert_eq!((with(repetition.clone(), &[0]), with(repetition, &[0, 1])), (1, 0));
        let presence = SamplingParams { presence_penalty: 0.2, ..base.clone() };
        assert_eq!((with(presence.clone(), &[0]), with(presence.clone(), &[1, 0])), (0, 1));
        // Twice present is still once; twice as frequent is twice.
        assert_eq!(with(presence, &[1, 0, 0, 1]), 0);
        let frequency = SamplingParams { frequency_penalty: 0.2, ..base };
        assert_eq!((with(frequency.clone(), &[3, 0, 1, 1]), with(frequency, &[3, 0, 0, 0, 1, 1])), (0, 1));
    }

    #[test]
    fn end_tokens_wait_for_min_tokens() {
        let logits = [0.0f32, 1.0, 2.0, 5.0];
        let params = SamplingParams { min_tokens: 4, stop_token_ids: vec![2], ..SamplingParams::default() };
        assert_eq!(pick(&logits, &request(params.clone()), 3, &[]), 1);
        assert_eq!(pick(&logits, &request(params), 4, &[]), 3);
    }
}
