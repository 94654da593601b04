//! R2R, Roads to Rome (arXiv 2505.21600): a classifier on the small model's hidden state, candidate and largest logits says
//! whether the candidate would diverge from what the large model writes.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::head::HeadKind;
use super::registry::{BuiltPolicy, Keeps, Method, MethodFacts, Sweep, SystemView};
use super::scored::{Hard, Scored, Scorer, check_threshold, load_head, required_weights, threshold};

/// Options of `r2r`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct R2r {
    /// Safetensors file of R2R's classifier (`docs/reference/router-weights.md`).
    weights: PathBuf,
    /// Score at or above which the large model writes the token. The file's own value when absent.
    threshold: Option<f64>,
}

impl Method for R2r {
    const FACTS: MethodFacts = MethodFacts {
        name: "r2r",
        summary: "R2R: a classifier says where the small model's token would diverge; the large model writes that one token.",
        signal: "classifier on hidden state, candidate embedding and 100 largest logits of the small model",
        unit: "probability",
        rule: "score >= threshold",
        dropped: "the small model's",
        p: "[[1-p, p], [1, 0]]",
        c: "[[1, 0], [1, 0]]",
        source: "R2R, arXiv 2505.21600",
        sweep: Some(Sweep { option: "threshold", high_is_hard: true, span: Keeps::Token }),
    };

    const PATHS: &'static [&'static str] = &["weights"];

    fn check(&self) -> Result<(), String> {
        required_weights("r2r", &self.weights)?;
        check_threshold(self.threshold)
    }

    fn build(self, system: &SystemView) -> BuiltPolicy {
        let head = load_head("r2r", required_weights("r2r", &self.weights)?, HeadKind::R2rMlp, system)?;
        let threshold = threshold(self.threshold, head.threshold())?;
        Ok(Scored::policy(system.pair("r2r")?, Scorer::Head(head), threshold, Hard::AtLeast))
    }
}
