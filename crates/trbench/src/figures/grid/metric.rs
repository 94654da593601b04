//! What can be drawn of a run.

use serde::Deserialize;

use crate::results::Summary;

/// A number of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Metric {
    /// Committed tokens per second of all requests.
    OutputThroughput,
    /// Mean time between the tokens of a request.
    MeanTpotMs,
    /// Mean time to the first token.
    MeanTtftMs,
    /// Mean time from sending to the end.
    MeanE2elMs,
    /// Tokens per second of one request: the inverse of `mean_tpot_ms`.
    UserSpeed,
    /// Share of the tokens that the entry model did not write.
    LlmRatio,
    /// Share of the tokens that the judge would have written at the same place.
    Agreement,
    /// Mean log-likelihood of the tokens under the judge.
    LogLikelihood,
    /// Share of right answers.
    Accuracy,
}

/// A value with its 95 % interval, which is the value itself where there is none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value {
    pub(super) mean: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Value {
    fn exact(mean: f64) -> Self {
        Self { mean, low: mean, high: mean }
    }
}

impl Metric {
    pub(super) const ALL: [Self; 9] = [
        Self::OutputThroughput,
        Self::MeanTpotMs,
        Self::MeanTtftMs,
        Self::MeanE2elMs,
        Self::UserSpeed,
        Self::LlmRatio,
        Self::Agreement,
        Self::LogLikelihood,
        Self::Accuracy,
    ];

    /// As in files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OutputThroughput => "output_throughput",
            Self::MeanTpotMs => "mean_tpot_ms",
            Self::MeanTtftMs => "mean_ttft_ms",
            Self::MeanE2elMs => "mean_e2el_ms",
            Self::UserSpeed => "user_speed",
            Self::LlmRatio => "llm_ratio",
            Self::Agreement => "agreement",
            Self::LogLikelihood => "log_likelihood",
            Self::Accuracy => "accuracy",
        }
    }

    /// For an axis of a picture.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::OutputThroughput => "tokens per second",
            Self::MeanTpotMs => "ms per token of a request",
            Self::MeanTtftMs => "ms to the first token",
            Self::MeanE2elMs => "ms to the end of a request",
            Self::UserSpeed => "tokens per second of a request",
            Self::LlmRatio => "share of tokens by the large model",
            Self::Agreement => "agreement with the large model",
            Self::LogLikelihood => "log-likelihood per token under the large model (nats)",
            Self::Accuracy => "share of right answers",
        }
    }

    /// Whether a picture of it begins at zero.
    pub(super) fn begins_at_zero(self) -> bool {
        !matches!(self, Self::Agreement | Self::LogLikelihood)
    }

    pub(super) fn of(self, summary: &Summary) -> Option<Value> {
        let between = |name: &str, value: Option<f64>| match summary.intervals.get(name) {
            Some(trials) => Some(Value { mean: trials.mean, low: trials.low, high: trials.high }),
            None => value.map(Value::exact),
        };
        let latency = |name: &str| between(name, summary.latency.get(name)?.as_f64());
        match self {
            Self::OutputThroughput => between(self.name(), Some(summary.output_throughput)),
            Self::MeanTpotMs | Self::MeanTtftMs | Self::MeanE2elMs => latency(self.name()),
            Self::UserSpeed => latency("mean_tpot_ms").filter(|ms| ms.mean > 0.0).map(|ms| {
                let speed = |ms: f64| if ms > 0.0 { 1e3 / ms } else { f64::INFINITY };
                // An interval that reaches down to nothing has no inverse.
                let high = if ms.low > 0.0 { speed(ms.low) } else { speed(ms.mean) };
                Value { mean: speed(ms.mean), low: speed(ms.high), high }
            }),
            Self::LlmRatio => summary.llm_ratio.map(|mean| {
                let [low, high] = summary.llm_ratio_interval.unwrap_or([mean, mean]);
                Value { mean, low, high }
            }),
            Self::Agreement => summary.judged.as_ref().map(|judged| {
                let [low, high] = judged.agreement_interval.unwrap_or([judged.agreement; 2]);
                Value { mean: judged.agreement, low, high }
            }),
            Self::LogLikelihood => summary.judged.as_ref().map(|judged| {
                let [low, high] = judged.log_likelihood_interval.unwrap_or([judged.log_likelihood; 2]);
                Value { mean: judged.log_likelihood, low, high }
            }),
            Self::Accuracy => {
                let graded = summary.graded as u64;
                let [low, high] = crate::stats::wilson(summary.correct as u64, graded)?;
                Some(Value { mean: summary.correct as f64 / graded as f64, low, high })
            }
        }
    }
}
