//! The list of routing methods.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::head::{LoadHead, no_heads};
use super::{
    RoutingConfig, RoutingPolicy, aleatoric, citer, collm, ensemble, entropy, glimp, query, r2r, random, rstitch, rule,
};
use crate::request::ModelIndex;
use crate::token_texts::TokenTexts;

/// A policy, or why it cannot be built: the message names the option, its value and what is allowed.
pub type BuiltPolicy = Result<Box<dyn RoutingPolicy>, String>;

/// What a method can know about the system when it is built.
#[derive(Debug, Clone)]
pub struct SystemView {
    /// Names of the models, in order.
    pub models: Vec<String>,
    /// The model at which requests start.
    pub entry: ModelIndex,
    /// Vocabulary size.
    pub vocab: usize,
    /// Width of each model's hidden state; 0 for emulated models, which have none.
    pub hidden: Vec<usize>,
    /// Rows of each model's head: its vocabulary, padding, and extra rows.
    pub head_rows: Vec<usize>,
    /// Text of every token; absent when the models are emulated.
    pub texts: Option<Arc<TokenTexts>>,
    /// How files of learned heads are read.
    pub load_head: LoadHead,
}

impl SystemView {
    /// Emulated models with these names; requests start at the first.
    pub fn emulated(models: &[&str], vocab: usize) -> Self {
        let models: Vec<String> = models.iter().map(|name| (*name).to_owned()).collect();
        Self {
            hidden: vec![0; models.len()],
            head_rows: vec![vocab; models.len()],
            models,
            entry: 0,
            vocab,
            texts: None,
            load_head: no_heads,
        }
    }

    /// The two models of a small/large method as (small, large): the entry model is the small one.
    pub fn pair(&self, method: &str) -> Result<(ModelIndex, ModelIndex), String> {
        match self.models.len() {
            2 => Ok((self.entry, 1 - self.entry)),
            n => Err(format!("routing method `{method}` needs exactly 2 models, the configuration has {n}")),
        }
    }

    /// The text of the tokens.
    pub fn texts(&self, method: &str) -> Result<Arc<TokenTexts>, String> {
        let missing = || format!("routing method `{method}` reads the text of tokens, and emulated models write none");
        self.texts.clone().ok_or_else(missing)
    }
}

/// What a table says of a method. Formulas as in the fact sheets of the papers.
#[derive(Debug, Clone, Copy)]
pub struct MethodFacts {
    /// Name in `routing.method`.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// What is compared, and at which model.
    pub signal: &'static str,
    /// Unit or range of the signal.
    pub unit: &'static str,
    /// When a request moves, with equality.
    pub rule: &'static str,
    /// What becomes of the candidate.
    pub dropped: &'static str,
    /// Routing matrix of the throughput model.
    pub p: &'static str,
    /// Commit matrix.
    pub c: &'static str,
    /// Paper.
    pub source: &'static str,
    /// How a threshold is found for a wanted share, for methods that compare one number.
    pub sweep: Option<Sweep>,
}

/// A method's comparison of one number with one threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sweep {
    /// The option that holds the threshold.
    pub option: &'static str,
    /// Whether a score above the threshold goes to the large model (otherwise one below it).
    pub high_is_hard: bool,
    /// How long the large model keeps a request.
    pub span: Keeps,
}

/// How long the large model keeps a request that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// One token.
    Token,
    /// Until its own score is on the easy side.
    UntilEasy,
    /// A whole reasoning step; only the scores at the beginnings of steps count.
    Step,
    /// The whole request; only the first score counts.
    Request,
}

/// A method: its options are a plain struct with defaults, a range check, and a constructor.
pub trait Method: Serialize + DeserializeOwned + JsonSchema + Default {
    /// What tables say of it.
    const FACTS: MethodFacts;

    /// Options that are paths; relative ones are taken from the folder of the configuration file.
    const PATHS: &'static [&'static str] = &[];

    /// Checks ranges. The message names the option, the value and what is allowed.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Builds the policy.
    fn build(self, system: &SystemView) -> BuiltPolicy;
}

/// One registered method.
#[derive(Debug)]
pub struct MethodEntry {
    /// What tables say of it.
    pub facts: MethodFacts,
    /// Options that are paths.
    pub paths: &'static [&'static str],
    /// Names of its options.
    pub option_names: fn() -> Vec<String>,
    /// Schema of its options.
    pub schema: fn() -> Schema,
    /// Its options with their defaults.
    pub defaults: fn() -> Value,
    /// Checks types and ranges of the options.
    pub check: fn(&RoutingConfig) -> Result<(), String>,
    /// Builds the policy.
    pub build: fn(&RoutingConfig, &SystemView) -> BuiltPolicy,
}

const fn entry<M: Method>() -> MethodEntry {
    MethodEntry {
        facts: M::FACTS,
        paths: M::PATHS,
        option_names: || match serde_json::to_value(M::default()) {
            Ok(Value::Object(map)) => map.into_iter().map(|(key, _)| key).collect(),
            _ => Vec::new(),
        },
        schema: || schemars::schema_for!(M),
        defaults: || serde_json::to_value(M::default()).unwrap_or(Value::Null),
        check: |config| config.parse::<M>()?.check(),
        build: |config, system| {
            let options = config.parse::<M>()?;
            options.check()?;
            options.build(system)
        },
    }
}

static METHODS: &[MethodEntry] = &[
    entry::<rstitch::RStitch>(),
    entry::<r2r::R2r>(),
    entry::<citer::Citer>(),
    entry::<collm::CoLlm>(),
    entry::<glimp::Glimp>(),
    entry::<ensemble::Ensemble>(),
    entry::<entropy::Entropy>(),
    entry::<aleatoric::Aleatoric>(),
    entry::<query::Query>(),
    entry::<random::Random>(),
    entry::<rule::Rule>(),
];

/// All methods.
pub fn entries() -> &'static [MethodEntry] {
    METHODS
}

/// The names of all methods.
pub fn names() -> Vec<&'static str> {
    METHODS.iter().map(|method| method.facts.name).collect()
}

/// `docs/reference/algorithms.md`: a table of all methods, and their options.
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Routing algorithms\n\nGenerated by `trbench config algorithms`; a test compares this file with the registry.\n\n\
         `H` is entropy, `p`, `a`, `b` are shares of steps. `P[i][j]` is the probability that a step on model `i` sends the request\n\
         to model `j` (0 is the small one), `C[i][j]` the tokens committed by such a step.\n\n\
         | method | signal | unit | moves when | dropped | P | C | source |\n|-|-|-|-|-|-|-|-|\n",
    );
    for MethodEntry { facts: f, .. } in METHODS {
        let cells = [f.signal, f.unit, f.rule, f.dropped, f.p, f.c, f.source].join(" | ");
        let _ = writeln!(out, "| [`{}`](#{}) | {cells} |", f.name, f.name);
    }
    for entry in METHODS {
        let _ = writeln!(out, "\n## {}\n\n{}\n", entry.facts.name, entry.facts.summary);
        if let Some(sweep) = entry.facts.sweep {
            let _ = writeln!(out, "`trbench sweep-threshold` finds `{}` for a wanted share.\n", sweep.option);
        }
        let (schema, defaults) = ((entry.schema)().to_value(), (entry.defaults)());
        let _ = writeln!(out, "| option | default | meaning |\n|-|-|-|");
        for (name, default) in defaults.as_object().into_iter().flatten() {
            let text = schema["properties"][name]["description"].as_str().unwrap_or_default().replace('\n', " ");
            let _ = writeln!(out, "| `{name}` | `{default}` | {text} |");
        }
    }
    out
}

/// A method by name.
pub fn find(name: &str) -> Option<&'static MethodEntry> {
    METHODS.iter().find(|method| method.facts.name == name)
}

/// Builds the configured policy.
pub fn build(config: &RoutingConfig, system: &SystemView) -> BuiltPolicy {
    let entry = find(&config.method).ok_or_else(|| format!("unknown routing method `{}`", config.method))?;
    (entry.build)(config, system)
}

/// A threshold that is 0 or more; the message names option and value.
pub(super) fn check_not_negative(option: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(format!("`routing.{option}` is {value}, it must be 0 or more"))
    }
}

/// A probability; the message names option and value.
pub(super) fn check_unit(option: &str, value: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(format!("`routing.{option}` is {value}, allowed is 0 to 1")) }
}
