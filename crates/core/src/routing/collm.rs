//! Co-LLM (arXiv 2403.03870): the small model has learned when to defer, as one extra row of its output matrix.
//!
//! The row's logit is an independent Bernoulli variable: it takes no part in the softmax and is never sampled. It is
//! either a row of the small model's own head, or a head file beside an unchanged model.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::head::HeadKind;
use super::registry::{BuiltPolicy, Keeps, Method, MethodFacts, Sweep, SystemView};
use super::scored::{Hard, Scored, Scorer, check_threshold, load_head};

/// Options of `collm`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CoLlm {
    /// Safetensors file with the deferral row (`docs/reference/router-weights.md`). Without it the row is one of the
    /// small model's own head.
    weights: PathBuf,
    /// Index of that row in the small model's head; the last one when absent.
    deferral_row: Option<u32>,
    /// Deferral probability above which the large model writes the token; the file's own value, or 0.5, when absent.
    threshold: Option<f64>,
}

impl Method for CoLlm {
    const FACTS: MethodFacts = MethodFacts {
        name: "collm",
        summary: "Co-LLM: the small model has learned to defer single tokens to the large one.",
        signal: "sigmoid of the deferral row's logit of the small model",
        unit: "probability",
        rule: "score > threshold",
        dropped: "the small model's",
        p: "[[1-p, p], [1, 0]]",
        c: "[[1, 0], [1, 0]]",
        source: "Co-LLM, arXiv 2403.03870",
        sweep: Some(Sweep { option: "threshold", high_is_hard: true, span: Keeps::Token }),
    };

    const PATHS: &'static [&'static str] = &["weights"];

    fn check(&self) -> Result<(), String> {
        if self.deferral_row.is_some() && !self.weights.as_os_str().is_empty() {
            return Err("`routing.deferral_row` and `routing.weights` exclude each other".into());
        }
        check_threshold(self.threshold)
    }

    fn build(self, system: &SystemView) -> BuiltPolicy {
        let pair = system.pair("collm")?;
        let (scorer, of_file) = if self.weights.as_os_str().is_empty() {
            let (name, rows) = (&system.models[pair.0], system.head_rows[pair.0]);
            let row = self.deferral_row.unwrap_or_else(|| (rows as u32).saturating_sub(1));
            if row as usize >= rows {
                return Err(format!("`routing.deferral_row` is {row}, the head of model `{name}` has {rows} rows"));
            }
            (Scorer::Row(row), None)
        } else {
            let head = load_head("collm", &self.weights, HeadKind::DeferralRow, system)?;
            let threshold = head.threshold();
            (Scorer::Head(head), threshold)
        };
        let threshold = self.threshold.or(of_file).unwrap_or(0.5);
        Ok(Scored::policy(pair, scorer, threshold, Hard::Above))
    }
}
