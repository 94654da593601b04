//! What is done with every key that model files have: read, irrelevant, or refused. A key that is in no table is named in a
//! warning, because it might change what the model computes. `docs/reference/models.md` shows these tables.

mod config;
mod gguf;
mod tokenizer;

use serde_json::Value;

pub(super) use config::{CONFIG, GENERATION};
pub(super) use gguf::GGUF;
pub(super) use tokenizer::{TOKENIZER, TOKENIZER_CONFIG};

/// What is done with a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    /// Read.
    Read,
    /// Without influence on what is computed here.
    Irrelevant,
    /// Not computed here: refused, unless it is left out, `null`, or one of these values in JSON. `[1*]` is a list of ones.
    Only(&'static [&'static str]),
}

/// Keys of which the same is to be said.
#[derive(Debug)]
pub(super) struct Keys {
    rule: Rule,
    /// What the keys decide, or why they do not matter.
    about: &'static str,
    /// Names. A name may end with `*`.
    names: &'static [&'static str],
}

/// The keys of one kind of file.
#[derive(Debug)]
pub(super) struct Table {
    file: &'static str,
    keys: &'static [Keys],
}

/// Longest value that an error shows.
const SHOWN: usize = 60;

impl Table {
    fn find(&self, name: &str) -> Option<&Keys> {
        let exact = self.keys.iter().find(|keys| keys.names.contains(&name));
        let begins = |pattern: &&str| pattern.strip_suffix('*').is_some_and(|start| name.starts_with(start));
        exact.or_else(|| self.keys.iter().find(|keys| keys.names.iter().any(begins)))
    }

    /// Refuses what is not computed, and returns a warning that names unknown keys.
    pub(super) fn check<'a, V: 'a>(
        &self,
        entries: impl IntoIterator<Item = (&'a str, &'a V)>,
        json: impl Fn(&V) -> Value,
    ) -> Result<Option<String>, String> {
        let mut unknown = Vec::new();
        for (name, value) in entries {
            match self.find(name).map(|keys| (keys.rule, keys.about)) {
                Some((Rule::Only(allowed), about)) => only(name, &json(value), allowed, about)?,
                Some(_) => {}
                None if json(value).is_null() => {}
                None => unknown.push(name),
            }
        }
        unknown.sort_unstable();
        let list = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        Ok((!unknown.is_empty()).then(|| format!("{} of {} unknown and not used", list(&unknown), self.file)))
    }

    /// As [`Self::check`], for a JSON file.
    pub(super) fn check_object(&self, value: &Value) -> Result<Option<String>, String> {
        let entries = value.as_object().into_iter().flatten();
        self.check(entries.map(|(name, value)| (name.as_str(), value)), Value::clone)
    }

    /// The rows of the table in the documentation.
    #[cfg(test)]
    fn markdown(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!("### `{}`\n\n| keys | what is done | about |\n|---|---|---|\n", self.file);
        for Keys { rule, about, names } in self.keys {
            let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            let rule = match rule {
                Rule::Read => "read".to_owned(),
                Rule::Irrelevant => "irrelevant".to_owned(),
                Rule::Only([]) => "refused".to_owned(),
                Rule::Only(values) => {
                    let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
                    format!("refused unless {}", values.join(" or "))
                }
            };
            let _ = writeln!(text, "| {} | {rule} | {about} |", names.join(", "));
        }
        text
    }
}

fn only(name: &str, value: &Value, allowed: &[&str], about: &str) -> Result<(), String> {
    if value.is_null() || allowed.iter().any(|allowed| is(value, allowed)) {
        return Ok(());
    }
    let mut shown = value.to_string();
    if shown.chars().count() > SHOWN {
        shown = shown.chars().take(SHOWN).chain("...".chars()).collect();
    }
    let allowed: Vec<_> = allowed.iter().map(|value| format!("`{value}`")).chain(["leaving it out".into()]).collect();
    Err(format!("key `{name}` is `{shown}`: {about} is not supported, allowed is {}", allowed.join(" or ")))
}

/// Whether a value is what a table writes: numbers by their values.
fn is(value: &Value, allowed: &str) -> bool {
    if allowed == "[1*]" {
        return value.as_array().is_some_and(|values| values.iter().all(|value| value.as_f64() == Some(1.0)));
    }
    match (value.as_f64(), allowed.parse::<f64>()) {
        (Some(value), Ok(allowed)) => value == allowed,
        _ => serde_json::from_str::<Value>(allowed).is_ok_and(|allowed| *value == allowed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TABLES: [&Table; 5] = [&CONFIG, &GENERATION, &TOKENIZER_CONFIG, &TOKENIZER, &GGUF];

    #[test]
    fn the_documentation_shows_these_tables() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/models.md");
        let have = std::fs::read_to_string(&path).expect("the page");
        let tables = TABLES.map(Table::markdown).join("\n");
        const START: &str = "<!-- Made from crates/engine/src/model/keys. -->\n\n";
        let (before, _) = have.split_once(START).expect("the mark before the tables");
        let want = format!("{before}{START}{tables}");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &want).expect("writable");
        }
        assert!(have == want, "docs/reference/models.md is not what the tables say: run this test with UPDATE_DOCS=1");
    }

    #[test]
    fn every_key_is_in_one_place_of_its_table() {
        for table in TABLES {
            let mut names: Vec<_> = table.keys.iter().flat_map(|keys| keys.names).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{}", table.file);
            for keys in table.keys {
                if let Rule::Only(allowed) = keys.rule {
                    let known = |text: &&&str| **text == "[1*]" || serde_json::from_str::<Value>(text).is_ok();
                    assert_eq!(allowed.iter().find(|text| !known(text)), None, "{}", table.file);
                }
            }
        }
    }

    #[test]
    fn values_are_refused_by_name_and_unknown_keys_are_named() {
        let table = Table {
            file: "a.json",
            keys: &[
                Keys { rule: Rule::Read, about: "a", names: &["a"] },
                Keys { rule: Rule::Only(&["1", "false", "{}"]), about: "scaling", names: &["b", "b_*"] },
                Keys { rule: Rule::Only(&["[1*]"]), about: "layers", names: &["c"] },
            ],
        };
        for good in
            [json!({"a": 7, "b": 1.0, "b_x": false}), json!({"b": {}, "c": [1, 1]}), json!({"b": null, "z": null})]
        {
            assert_eq!(table.check_object(&good), Ok(None), "{good}");
        }
        let warning = table.check_object(&json!({"z": 1, "y": 0})).expect("only unknown").expect("a warning");
        assert_eq!(warning, "`y`, `z` of a.json unknown and not used");
        for (bad, wanted) in [
            (
                json!({"b": 2}),
                "key `b` is `2`: scaling is not supported, allowed is `1` or `false` or `{}` or leaving it out",
            ),
            (json!({"b_y": "1"}), "key `b_y` is `\"1\"`"),
            (json!({"c": [1, 0]}), "key `c` is `[1,0]`"),
            (json!({"b": "é".repeat(100)}), "..."),
        ] {
            let message = table.check_object(&bad).expect_err("refused");
            assert!(message.contains(wanted), "{message}");
        }
    }
}
