//! CITER (arXiv 2502.01976): a network on the small model's hidden state says how sure it is that the small model suffices.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::head::HeadKind;
use super::registry::{BuiltPolicy, Keeps, Method, MethodFacts, Sweep, SystemView};
use super::scored::{Hard, Scored, Scorer, check_threshold, load_head, required_weights, threshold};

/// Options of `citer`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Citer {
    /// Safetensors file of CITER's confidence network (`docs/reference/router-weights.md`).
    weights: PathBuf,
    /// Confidence below which the large model writes the token. The file's own value when absent.
    threshold: Option<f64>,
}

impl Method for Citer {
    const FACTS: MethodFacts = MethodFacts {
        name: "citer",
        summary: "CITER: the large model writes a token where the confidence in the small model is low.",
        signal: "confidence network on the small model's hidden state",
        unit: "probability",
        rule: "score < threshold",
        dropped: "the small model's",
        p: "[[1-p, p], [1, 0]]",
        c: "[[1, 0], [1, 0]]",
        source: "CITER, arXiv 2502.01976",
        sweep: Some(Sweep { option: "threshold", high_is_hard: false, span: Keeps::Token }),
    };

    const PATHS: &'static [&'static str] = &["weights"];

    fn check(&self) -> Result<(), String> {
        required_weights("citer", &self.weights)?;
        check_threshold(self.threshold)
    }

    fn build(self, system: &SystemView) -> BuiltPolicy {
        let head = load_head("citer", required_weights("citer", &self.weights)?, HeadKind::CiterMlp, system)?;
        let threshold = threshold(self.threshold, head.threshold())?;
        Ok(Scored::policy(system.pair("citer")?, Scorer::Head(head), threshold, Hard::Below))
    }
}
