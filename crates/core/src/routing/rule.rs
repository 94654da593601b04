//! Rules without Rust: an expression per model over the signals, written in the configuration.
//!
//! ```yaml
//! routing:
//!   method: rule
//!   rules:
//!     small: {when: "entropy > 0.45", to: large, drop: true}
//!     large: {when: "entropy <= 0.45", to: small}
//! ```
//!
//! Expressions are compiled once, know nothing but the variables of [`VARIABLES`], and are limited in operations and
//! sizes. A model's rules are tried in order; without a match the request stays.

use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use rhai::packages::{Package, StandardPackage};
use rhai::{AST, Scope};
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::registry::{BuiltPolicy, Method, MethodFacts, SystemView};
use super::{BatchView, Candidate, Decision, RoutingPolicy, Row, SignalNeeds, Signals};
use crate::names::{list, nearest};
use crate::request::ModelIndex;
use crate::token_texts::TokenTexts;

/// Options of `rule`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Rule {
    /// Rules of each model, by its name: one, or a list of which the first that matches counts. Variables: `entropy`
    /// (nats), `entropy_norm` (0 to 1), `top_entropy` (over the 20 most likely tokens, renormalised), `max_prob`,
    /// `margin` (of the two largest probabilities), `position`, `prompt_tokens`, `run_length` (tokens that this model
    /// committed since the request came), `since_switch` (steps since then), `token_id`, `token_text`, `random` (a
    /// keyed draw from 0 to 1).
    rules: IndexMap<String, Rules>,
}

/// One rule or several.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(transparent)]
struct Rules(Vec<OneRule>);

/// One rule.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneRule {
    /// An expression that is true or false.
    when: String,
    /// The model that the request then moves to.
    to: String,
    /// Whether the candidate is dropped.
    #[serde(default)]
    drop: bool,
}

impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let values = if let serde_json::Value::Array(values) = value { values } else { vec![value] };
        let rules = values.into_iter().map(serde_json::from_value).collect::<Result<_, _>>();
        rules.map(Self).map_err(D::Error::custom)
    }
}

/// Names that expressions may use.
const VARIABLES: [&str; 12] = [
    "entropy",
    "entropy_norm",
    "top_entropy",
    "max_prob",
    "margin",
    "position",
    "prompt_tokens",
    "run_length",
    "since_switch",
    "token_id",
    "token_text",
    "random",
];

/// Tokens over which `top_entropy` is taken.
const TOP: usize = 20;

impl Method for Rule {
    const FACTS: MethodFacts = MethodFacts {
        name: "rule",
        summary: "Rules written in the configuration: an expression per model over the signals.",
        signal: "any, at any model",
        unit: "as the variable says",
        rule: "the first `when` that is true",
        dropped: "with `drop: true`",
        p: "any",
        c: "any",
        source: "this project",
        sweep: None,
    };

    fn check(&self) -> Result<(), String> {
        let engine = engine();
        if self.rules.values().all(|rules| rules.0.is_empty()) {
            return Err("`routing.rules` is empty: it needs a rule of at least one model".into());
        }
        for (model, rule) in self.each() {
            compile(&engine, model, &rule.when)?;
        }
        Ok(())
    }

    fn build(self, system: &SystemView) -> BuiltPolicy {
        let index = |name: &str, place: &str| {
            system.models.iter().position(|model| model == name).ok_or_else(|| {
                let hint = nearest(name, system.models.iter().map(String::as_str));
                format!("`{place}` names model `{name}`, known are {}{hint}", list(&system.models))
            })
        };
        let engine = engine();
        let mut rules: Vec<Vec<Compiled>> = system.models.iter().map(|_| Vec::new()).collect();
        for (model, rule) in self.each() {
            let from = index(model, "routing.rules")?;
            let to = index(&rule.to, &format!("routing.rules.{model}.to"))?;
            rules[from].push(Compiled { when: compile(&engine, model, &rule.when)?, to, drop: rule.drop });
        }
        let used = |name: &str| self.each().any(|(_, rule)| mentions(&rule.when, name));
        let uses = Uses {
            softmax: ["entropy", "entropy_norm", "max_prob", "margin"].into_iter().any(used),
            top: match () {
                () if used("top_entropy") => TOP,
                () if used("margin") || used("max_prob") => 2,
                () => 0,
            },
            texts: if used("token_text") { Some(system.texts("rule")?) } else { None },
        };
        let ln_vocab = (system.vocab as f64).ln();
        Ok(Box::new(Policy { engine, rules, uses, ln_vocab, scope: Mutex::new(Scope::new()) }))
    }
}

impl Rule {
    fn each(&self) -> impl Iterator<Item = (&str, &OneRule)> {
        self.rules.iter().flat_map(|(model, rules)| rules.0.iter().map(|rule| (model.as_str(), rule)))
    }
}

/// Whether `name` occurs as a word. It may be in a string literal: then a signal is computed for nothing.
fn mentions(text: &str, name: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == name)
}

/// An expression engine that can do no more than compute.
fn engine() -> rhai::Engine {
    let mut engine = rhai::Engine::new_raw();
    StandardPackage::new().register_into_engine(&mut engine);
    engine.disable_symbol("eval").set_strict_variables(true);
    engine.set_max_operations(1_000).set_max_expr_depths(64).set_max_string_size(4096);
    engine
}

fn compile(engine: &rhai::Engine, model: &str, text: &str) -> Result<AST, String> {
    let mut scope = Scope::new();
    for name in VARIABLES {
        scope.push_dynamic(name, rhai::Dynamic::UNIT);
    }
    engine.compile_expression_with_scope(&scope, text).map_err(|error| {
        format!("`routing.rules.{model}.when` is `{text}`: {error}; variables are {}", list(&VARIABLES))
    })
}

#[derive(Debug)]
struct Compiled {
    when: AST,
    to: ModelIndex,
    drop: bool,
}

/// What the expressions use.
#[derive(Debug)]
struct Uses {
    softmax: bool,
    top: usize,
    texts: Option<Arc<TokenTexts>>,
}

#[derive(Debug)]
struct Policy {
    engine: rhai::Engine,
    /// By model.
    rules: Vec<Vec<Compiled>>,
    uses: Uses,
    ln_vocab: f64,
    /// Reused; never contended for long, because a subserver evaluates its few rows at once.
    scope: Mutex<Scope<'static>>,
}

/// Whether the rule that matched drops the candidate.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Matched {
    drop: bool,
}

impl Policy {
    fn fill(&self, scope: &mut Scope<'static>, row: &Row, signals: Signals<'_>) {
        scope.rewind(0);
        let entropy = f64::from(signals.entropy);
        let floats = [
            ("entropy", entropy),
            ("entropy_norm", entropy / self.ln_vocab),
            ("top_entropy", f64::from(signals.top_entropy(TOP))),
            ("max_prob", f64::from(signals.max_prob())),
            ("margin", f64::from(signals.margin())),
            ("random", row.draw()),
        ];
        for (name, value) in floats {
            scope.push(name, value);
        }
        let integers = [
            ("position", row.position as i64),
            ("prompt_tokens", row.prompt_tokens as i64),
            ("run_length", i64::from(row.visit_tokens)),
            ("since_switch", i64::from(row.visit_steps)),
            ("token_id", i64::from(row.candidate)),
        ];
        for (name, value) in integers {
            scope.push(name, value);
        }
        let text = self.uses.texts.as_ref().map(|texts| String::from_utf8_lossy(texts.get(row.candidate)).into_owned());
        scope.push("token_text", text.unwrap_or_default());
    }

    fn one(&self, scope: &mut Scope<'static>, row: &mut Row, signals: Signals<'_>) -> Decision {
        let rules = &self.rules[row.model];
        if rules.is_empty() {
            return Decision::Stay;
        }
        self.fill(scope, row, signals);
        for rule in rules {
            match self.engine.eval_ast_with_scope::<bool>(scope, &rule.when) {
                Ok(false) => {}
                Ok(true) => {
                    row.state.get::<Matched>().drop = rule.drop;
                    // A rule that leads to its own model asks to write the position again.
                    return match rule.to == row.model {
                        true if rule.drop => Decision::Retry,
                        true => Decision::Stay,
                        false => Decision::Switch(rule.to),
                    };
                }
                Err(error) => {
                    let text = rule.when.source().unwrap_or_default();
                    return Decision::Fail(format!("{}: a routing rule failed: {error} {text}", row.request));
                }
            }
        }
        Decision::Stay
    }
}

impl RoutingPolicy for Policy {
    fn needs(&self, model: ModelIndex) -> SignalNeeds {
        if self.rules[model].is_empty() {
            return SignalNeeds::default();
        }
        SignalNeeds { softmax: self.uses.softmax, top_logits: self.uses.top, ..SignalNeeds::default() }
    }

    fn route(&self, batch: &mut BatchView<'_>) {
        let mut scope = self.scope.lock().unwrap_or_else(PoisonError::into_inner);
        batch.decide(|row, signals| self.one(&mut scope, row, signals));
    }

    fn send(&self, row: &mut Row, _to: ModelIndex) -> Candidate {
        if row.state.get::<Matched>().drop { Candidate::Drop } else { Candidate::Commit }
    }
}

#[cfg(test)]
mod tests {
    use super::super::registry;
    use super::super::testing::{decide, row, with_entropy};
    use super::*;
    use crate::routing::RoutingConfig;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn view() -> SystemView {
        SystemView::emulated(&["small", "large"], 49152)
    }

    fn policy(method: &str, options: Value) -> BuiltPolicy {
        registry::build(&RoutingConfig::new(method, options), &view())
    }

    fn rules(small: Value, large: Value) -> BuiltPolicy {
        policy("rule", json!({"rules": {"small": small, "large": large}}))
    }

    proptest! {
        /// R-Stitch and the entropy router written as rules decide like the built-in ones, at the threshold as well.
        #[test]
        fn rules_express_the_built_in_methods(
            threshold in 0f64..3.0, offset in -3i32..4, far in 0f32..4.0, near in any::<bool>(), model in 0usize..2
        ) {
            let at = threshold as f32;
            let entropy = if near { f32::from_bits((at.to_bits() as i32 + offset).max(0) as u32) } else { far };
            let stitch = policy("rstitch", json!({"entropy_threshold": threshold})).expect("valid");
            let ours = rules(
                json!({"when": format!("entropy > {threshold:?}"), "to": "large", "drop": true}),
                json!({"when": format!("entropy <= {threshold:?}"), "to": "small"}),
            ).expect("valid");
            let borrow = policy("entropy", json!({"entropy_threshold": threshold})).expect("valid");
            let also = rules(
                json!({"when": format!("entropy >= {threshold:?}"), "to": "large", "drop": true}),
                json!({"when": "true", "to": "small"}),
            ).expect("valid");
            let output = with_entropy(entropy);
            for (built_in, rule) in [(stitch, ours), (borrow, also)] {
                let (want, fate) = decide(&*built_in, &mut row(model, 3), &output);
                let (got, our_fate) = decide(&*rule, &mut row(model, 3), &output);
                prop_assert_eq!(&got, &want);
                if matches!(want, Decision::Switch(_)) {
                    prop_assert_eq!(our_fate, fate);
                }
            }
        }
    }

    #[test]
    fn the_first_rule_that_matches_counts_and_variables_have_their_values() {
        let policy = rules(
            json!([
                {"when": "position == 3 && token_id == 5 && prompt_tokens == 10 && run_length == 0", "to": "large"},
                {"when": "random < 2.0", "to": "large", "drop": true},
            ]),
            json!({"when": "since_switch >= 2", "to": "small"}),
        )
        .expect("valid");
        let output = with_entropy(1.0);
        assert_eq!(decide(&*policy, &mut row(0, 3), &output), (Decision::Switch(1), Candidate::Commit));
        assert_eq!(decide(&*policy, &mut row(0, 4), &output), (Decision::Switch(1), Candidate::Drop));
        assert_eq!(decide(&*policy, &mut row(1, 4), &output).0, Decision::Stay);
        let mut later = row(1, 4);
        later.visit_steps = 2;
        assert_eq!(decide(&*policy, &mut later, &output).0, Decision::Switch(0));
    }

    #[test]
    fn mistakes_are_named() {
        let rule = |when: &str| json!({"when": when, "to": "large"});
        let never = json!({"when": "false", "to": "small"});
        for (small, wanted) in [
            (rule("entropie > 1"), "entropie"),
            (rule("entropy >"), "routing.rules.small.when"),
            (rule("eval(\"1\")"), "eval"),
            (rule("let x = 1; x > 0"), "let"),
            (json!({"when": "true", "to": "larg"}), "`larg`"),
            (json!({"when": "true", "too": "large"}), "too"),
            (rule("token_text == \"a\""), "emulated models write none"),
        ] {
            let message = rules(small.clone(), never.clone()).expect_err("a mistake");
            assert!(message.contains(wanted), "{small}: {message}");
        }
    }

    #[test]
    fn an_expression_that_fails_ends_its_request_with_its_name() {
        let policy = rules(json!({"when": "position / 0 > 1", "to": "large"}), json!([])).expect("compiles");
        let (decision, _) = decide(&*policy, &mut row(0, 3), &with_entropy(1.0));
        assert!(matches!(&decision, Decision::Fail(message) if message.contains("request 1")), "{decision:?}");
        // Not a truth value.
        let policy = rules(json!({"when": "position", "to": "large"}), json!([])).expect("compiles");
        assert!(matches!(decide(&*policy, &mut row(0, 3), &with_entropy(1.0)).0, Decision::Fail(_)));
    }
}
