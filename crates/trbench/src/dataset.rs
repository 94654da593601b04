//! Workloads: competition problems from JSONL files under any of their public field names.

use std::path::Path;

use serde_json::Value;

use crate::cli::usage;
use crate::grade::parse_integer;

/// The starter set that ships with the project.
const AIME_STYLE: &str = include_str!("../../../datasets/aime_style.jsonl");

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its name in results.
    pub id: String,
    /// The text for the model.
    pub problem: String,
    /// The answer, when the file has one.
    pub answer: Option<i64>,
}

/// The problems of a file, or the starter set, with a name for the manifest.
pub fn load(path: Option<&Path>) -> anyhow::Result<(String, Vec<Item>)> {
    let Some(path) = path else {
        return Ok(("datasets/aime_style.jsonl (built in)".into(), parse(AIME_STYLE, "datasets/aime_style.jsonl")?));
    };
    let name = path.display().to_string();
    let text =
        std::fs::read_to_string(path).map_err(|error| usage(format!("cannot read dataset `{name}`: {error}")))?;
    let items = parse(&text, &name)?;
    if items.is_empty() {
        return Err(usage(format!("dataset `{name}` has no problems")));
    }
    Ok((name, items))
}

fn parse(text: &str, name: &str) -> anyhow::Result<Vec<Item>> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    lines
        .map(|(line, number)| parse_line(line, number).map_err(|why| usage(format!("{name}:{number}: {why}"))))
        .collect()
}

fn parse_line(line: &str, number: usize) -> Result<Item, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("not valid JSON: {error}"))?;
    let field = |names: &[&str]| names.iter().map(|name| &value[*name]).find_map(as_text);
    let problem = field(&["problem", "Problem", "question", "Question"])
        .ok_or("no text under `problem`, `Problem`, `question` or `Question`")?;
    // Some public files leave `answer` empty and put the number into `solution`, or have a worked solution there.
    let answers = ["answer", "Answer", "solution", "Solution"].map(|name| field(&[name]));
    let answer = answers.iter().flatten().find_map(|text| parse_integer(text));
    let id = field(&["id", "ID", "unique_id", "problem_id"]).unwrap_or_else(|| format!("line-{number}"));
    Ok(Item { id, problem, answer })
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_starter_set_has_ids_and_answers() {
        let (_, items) = load(None).expect("the built-in set parses");
        assert!(items.len() >= 30);
        assert!(items.iter().all(|item| item.answer.is_some_and(|answer| (0..1000).contains(&answer))));
    }

    #[test]
    fn public_field_names_are_understood() {
        let text = r#"{"ID": "2024-I-1", "Problem": "A?", "Answer": 204}

{"problem": "B?", "solution": "113", "answer": "", "unique_id": 1}
{"question": "C?", "answer": "$1,000$"}"#;
        let items = parse(text, "x").expect("parses");
        let ids: Vec<_> = items.iter().map(|item| (item.id.as_str(), item.answer)).collect();
        assert_eq!(ids, [("2024-I-1", Some(204)), ("1", Some(113)), ("line-4", Some(1000))]);
    }

    #[test]
    fn a_broken_line_is_named() {
        let error = parse("{\"problem\": \"A\"}\n{\"problem\": ", "set.jsonl").expect_err("broken").to_string();
        assert!(error.starts_with("set.jsonl:2: not valid JSON"), "{error}");
        let error = parse("{\"text\": \"A\"}", "set.jsonl").expect_err("no field").to_string();
        assert!(error.contains("set.jsonl:1: no text under `problem`"), "{error}");
    }
}
