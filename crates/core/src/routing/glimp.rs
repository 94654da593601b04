//! GlimpRouter (arXiv 2601.05110): the entropy of a reasoning step's first token decides who writes the whole step.
//!
//! The small model writes step 0. At every later beginning of a step its first token is a probe: at or above the
//! threshold the large model writes the step, otherwise the small one does. Thinking ends at `think_end`, when a step
//! repeats the one before it, or at a limit; then the large model writes the answer.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::registry::{BuiltPolicy, Keeps, Method, MethodFacts, Sweep, SystemView, check_not_negative};
use super::{BatchView, Candidate, Decision, RoutingPolicy, Row, SignalNeeds, Signals};
use crate::request::ModelIndex;
use crate::token_texts::TokenTexts;

/// Options of `glimp`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Glimp {
    /// Entropy in nats of a step's first token at or above which the large model writes the step.
    entropy_threshold: f64,
    /// The entropy is taken over this many most likely tokens, renormalised; 0: the whole vocabulary. Thresholds of the
    /// two are not comparable.
    top_k: usize,
    /// What becomes of a probe when the small model writes the step. `discard`: it makes the token once more, as the
    /// authors' code does. `keep`: the probe is the step's first token, one forward pass less and the same distribution.
    probe: Probe,
    /// Text that ends a step.
    delimiter: String,
    /// Text that ends the thinking; none when empty.
    think_end: String,
    /// Most tokens of a step.
    max_step_tokens: usize,
    /// Most tokens of all steps together.
    max_thinking_tokens: usize,
    /// Most tokens of the answer that follows.
    max_answer_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Probe {
    /// Made once more.
    Discard,
    /// Committed.
    Keep,
}

impl Default for Glimp {
    fn default() -> Self {
        Self {
            entropy_threshold: 1.0,
            top_k: 20,
            probe: Probe::Discard,
            delimiter: "\n\n".into(),
            think_end: "</think>".into(),
            max_step_tokens: 512,
            max_thinking_tokens: 8192,
            max_answer_tokens: 2048,
        }
    }
}

impl Method for Glimp {
    const FACTS: MethodFacts = MethodFacts {
        name: "glimp",
        summary: "GlimpRouter: the entropy of a reasoning step's first token decides who writes the step; the large model \
                  writes the answer.",
        signal: "entropy of the small model's first token of a step",
        unit: "nats over the 20 most likely tokens (at most 2.996)",
        rule: "H >= entropy_threshold",
        dropped: "the probe (kept by the small model with `probe: keep`)",
        p: "per step, not geometric: probe -> large q, -> small 1-q; back at the end of the step",
        c: "0 for a dropped probe, else 1",
        source: "GlimpRouter, arXiv 2601.05110",
        sweep: Some(Sweep { option: "entropy_threshold", high_is_hard: true, span: Keeps::Step }),
    };

    fn check(&self) -> Result<(), String> {
        check_not_negative("entropy_threshold", self.entropy_threshold)?;
        if self.top_k == 1 || self.top_k > 1000 {
            return Err(format!("`routing.top_k` is {}, allowed are 0 and 2 to 1000", self.top_k));
        }
        if self.delimiter.is_empty() {
            return Err("`routing.delimiter` is empty, it must be the text that ends a step".into());
        }
        for (name, value) in [
            ("max_step_tokens", self.max_step_tokens),
            ("max_thinking_tokens", self.max_thinking_tokens),
            ("max_answer_tokens", self.max_answer_tokens),
        ] {
            if value == 0 {
                return Err(format!("`routing.{name}` is 0, the smallest is 1"));
            }
        }
        Ok(())
    }

    fn build(self, system: &SystemView) -> BuiltPolicy {
        let (small, large) = system.pair("glimp")?;
        let texts = system.texts("glimp")?;
        Ok(Box::new(Policy { small, large, texts, options: self }))
    }
}

#[derive(Debug)]
struct Policy {
    small: ModelIndex,
    large: ModelIndex,
    texts: Arc<TokenTexts>,
    options: Glimp,
}

/// Where a request is in its reasoning.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Progress {
    /// The next candidate of the small model is the probe of a step.
    at_boundary: bool,
    /// The candidate that is being sent is a probe.
    probe: bool,
    /// Position of the answer's first token, once thinking is over.
    answer: Option<usize>,
    steps: usize,
    step_tokens: usize,
    /// Text of the current step, and of the one before.
    step: Vec<u8>,
    previous: Vec<u8>,
}

/// What a committed token means for the step it is in.
#[derive(Debug, PartialEq, Eq)]
enum Mark {
    Inside,
    StepEnd,
    ThinkEnd,
}

impl Policy {
    fn entropy(&self, signals: Signals<'_>) -> f32 {
        if self.options.top_k == 0 { signals.entropy } else { signals.top_entropy(self.options.top_k) }
    }

    /// Adds the candidate to the current step.
    fn advance(&self, progress: &mut Progress, candidate: u32, position: usize) -> Mark {
        let options = &self.options;
        let token = self.texts.get(candidate);
        // A marker may begin in earlier tokens, but not end in them.
        let ends = |step: &[u8], marker: &str| {
            let from = step.len().saturating_sub(token.len() + marker.len().saturating_sub(1));
            !marker.is_empty() && step[from..].windows(marker.len()).any(|window| window == marker.as_bytes())
        };
        progress.step.extend_from_slice(token);
        progress.step_tokens += 1;
        let thought = ends(&progress.step, &options.think_end) || position + 1 >= options.max_thinking_tokens;
        if !thought && !ends(&progress.step, &options.delimiter) && progress.step_tokens < options.max_step_tokens {
            return Mark::Inside;
        }
        progress.steps += 1;
        let repeats = progress.steps > 2 && progress.step == progress.previous;
        std::mem::swap(&mut progress.step, &mut progress.previous);
        progress.step.clear();
        progress.step_tokens = 0;
        if thought || repeats { Mark::ThinkEnd } else { Mark::StepEnd }
    }

    fn one(&self, row: &mut Row, signals: Signals<'_>) -> Decision {
        let (model, position, candidate) = (row.model, row.position, row.candidate);
        let threshold = row.threshold.unwrap_or(self.options.entropy_threshold);
        let progress = row.state.get::<Progress>();
        progress.probe = false;
        if let Some(start) = progress.answer {
            let last = position + 1 - start >= self.options.max_answer_tokens;
            return if last { Decision::Finish } else { Decision::Stay };
        }
        if model == self.small && std::mem::take(&mut progress.at_boundary) {
            let entropy = self.entropy(signals);
            row.score = entropy;
            if f64::from(entropy) >= threshold {
                progress.probe = true;
                return Decision::Switch(self.large);
            }
            if self.options.probe == Probe::Discard {
                return Decision::Retry;
            }
        }
        let to = match self.advance(progress, candidate, position) {
            Mark::Inside => return Decision::Stay,
            Mark::StepEnd => {
                progress.at_boundary = true;
                self.small
            }
            Mark::ThinkEnd => {
                progress.answer = Some(position + 1);
                self.large
            }
        };
        if to == model { Decision::Stay } else { Decision::Switch(to) }
    }
}

impl RoutingPolicy for Policy {
    fn needs(&self, model: ModelIndex) -> SignalNeeds {
        if model != self.small {
            return SignalNeeds::default();
        }
        SignalNeeds { softmax: self.options.top_k == 0, top_logits: self.options.top_k, ..SignalNeeds::default() }
    }

    fn takes_threshold(&self) -> bool {
        true
    }

    fn route(&self, batch: &mut BatchView<'_>) {
        batch.decide(|row, signals| self.one(row, signals));
    }

    fn send(&self, row: &mut Row, _to: ModelIndex) -> Candidate {
        if row.state.get::<Progress>().probe { Candidate::Drop } else { Candidate::Commit }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::row;
    use super::*;
    use crate::step::StepOutput;

    const WORD: u32 = 0;
    const STOP: u32 = 1; // ".\n\n": the delimiter inside a token
    const NEWLINE: u32 = 2; // "\n": two of them make the delimiter
    const THINK_END: u32 = 3;
    const OTHER: u32 = 4;

    /// One request as an engine drives it: applies decisions, checks which model is asked.
    struct Driver {
        policy: Box<dyn RoutingPolicy>,
        row: Row,
    }

    impl Driver {
        fn new(options: Glimp) -> Self {
            let mut view = SystemView::emulated(&["small", "large"], 5);
            view.texts = Some(Arc::new(TokenTexts::new(["word", ".\n\n", "\n", "</think>", "other"])));
            Self { policy: options.build(&view).expect("valid options"), row: row(0, 0) }
        }

        /// The model that holds the request proposes `token`. Returns where it goes on and whether it was committed.
        fn step(&mut self, token: u32, hard: bool) -> (Decision, bool) {
            // Two equal logits have an entropy of ln 2, one alone of nearly 0.
            let top = if hard { vec![(1.0, 0), (1.0, 1)] } else { vec![(50.0, 0), (1.0, 1)] };
            let output = StepOutput { tokens: vec![token], top, ..StepOutput::default() };
            self.row.candidate = token;
            self.policy.route(&mut BatchView::new(std::slice::from_mut(&mut self.row), &output));
            let decision = self.row.decision.clone();
            let committed = match decision {
                Decision::Switch(to) => {
                    let fate = self.policy.send(&mut self.row, to);
                    self.row.model = to;
                    fate == Candidate::Commit
                }
                Decision::Retry => false,
                _ => true,
            };
            self.row.position += usize::from(committed);
            (decision, committed)
        }
    }

    fn options() -> Glimp {
        Glimp { entropy_threshold: 0.5, probe: Probe::Keep, ..Glimp::default() }
    }

    #[test]
    fn the_first_step_is_the_small_models_whatever_its_entropy() {
        let mut driver = Driver::new(options());
        for token in [WORD, WORD, STOP] {
            assert_eq!(driver.step(token, true), (Decision::Stay, true));
        }
        // Now a probe: dropped, and the large model writes up to the delimiter.
        assert_eq!(driver.step(OTHER, true), (Decision::Switch(1), false));
        assert_eq!(driver.step(WORD, true), (Decision::Stay, true));
        assert_eq!(driver.step(STOP, true), (Decision::Switch(0), true));
        // An easy step stays; only its first token is looked at.
        assert_eq!(driver.step(WORD, false), (Decision::Stay, true));
        assert_eq!(driver.step(WORD, true), (Decision::Stay, true));
    }

    #[test]
    fn equality_goes_to_the_large_model_and_a_discarded_probe_is_made_again() {
        let at = f64::from(
            Signals {
                entropy: f32::NAN,
                log_sum_exp: 0.0,
                top: &[(1.0, 0), (1.0, 1)],
                hidden: &[],
                embedding: &[],
                extra: f32::NAN,
            }
            .top_entropy(20),
        );
        for (threshold, want) in [(at, Decision::Switch(1)), (at + 1e-6, Decision::Retry)] {
            let mut driver =
                Driver::new(Glimp { entropy_threshold: threshold, probe: Probe::Discard, ..Glimp::default() });
            driver.step(STOP, false);
            assert_eq!(driver.step(WORD, true), (want, false));
            // The second try is no probe any more.
            assert_eq!(driver.step(WORD, true), (Decision::Stay, true));
        }
    }

    #[test]
    fn a_delimiter_may_be_made_of_several_tokens() {
        let mut driver = Driver::new(options());
        driver.step(WORD, false);
        driver.step(NEWLINE, false);
        driver.step(NEWLINE, false);
        assert_eq!(driver.step(WORD, true), (Decision::Switch(1), false));
    }

    #[test]
    fn the_large_model_writes_the_answer_and_its_length_is_limited() {
        let mut driver = Driver::new(Glimp { max_answer_tokens: 2, ..options() });
        driver.step(WORD, false);
        assert_eq!(driver.step(THINK_END, false), (Decision::Switch(1), true));
        assert_eq!(driver.step(STOP, true), (Decision::Stay, true));
        assert_eq!(driver.step(WORD, true), (Decision::Finish, true));
    }

    #[test]
    fn thinking_ends_at_its_limit_and_when_a_step_repeats() {
        let mut driver = Driver::new(Glimp { max_thinking_tokens: 3, ..options() });
        driver.step(WORD, false);
        driver.step(WORD, false);
        assert_eq!(driver.step(WORD, false), (Decision::Switch(1), true));

        let mut driver = Driver::new(options());
        for (token, want) in [
            (OTHER, Decision::Stay),
            (STOP, Decision::Stay),
            (WORD, Decision::Stay),
            (STOP, Decision::Stay),
            (WORD, Decision::Stay),
            (STOP, Decision::Switch(1)),
        ] {
            assert_eq!(driver.step(token, false), (want, true));
        }
    }

    #[test]
    fn long_steps_are_cut() {
        let mut driver = Driver::new(Glimp { max_step_tokens: 2, ..options() });
        driver.step(WORD, false);
        driver.step(WORD, false);
        assert_eq!(driver.step(WORD, true), (Decision::Switch(1), false));
        driver.step(WORD, true);
        assert_eq!(driver.step(OTHER, true), (Decision::Switch(0), true));
    }
}
