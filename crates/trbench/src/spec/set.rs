//! `--set KEY=VALUE`: a configuration with some keys changed, without a file of its own.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::usage;

/// YAML that keeps the order of its keys: the order of the models matters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Node {
    Map(IndexMap<String, Self>),
    List(Vec<Self>),
    Scalar(Value),
}

/// The configuration with the keys set; the text itself when nothing is to be set, so that errors name its lines.
pub(super) fn apply(text: &str, origin: &str, sets: &[String]) -> anyhow::Result<String> {
    if sets.is_empty() {
        return Ok(text.to_owned());
    }
    let mut root: Node = serde_saphyr::from_str(text).map_err(|error| usage(format!("{origin}: {error}")))?;
    for set in sets {
        let expected = "expected KEY=VALUE, such as models.large.emulated.latency_ms=27.9";
        let refuse = |why: &str| usage(format!("--set `{set}`: {why}"));
        let (path, value) = set.split_once('=').ok_or_else(|| refuse(expected))?;
        if path.split('.').any(str::is_empty) {
            return Err(refuse(expected));
        }
        let value = serde_saphyr::from_str(value).map_err(|error| refuse(&error.to_string()))?;
        put(&mut root, path, value).map_err(|why| refuse(&why))?;
    }
    Ok(serde_json::to_string_pretty(&root)?)
}

fn put(mut node: &mut Node, path: &str, value: Node) -> Result<(), String> {
    for key in path.split('.') {
        if matches!(node, Node::Scalar(Value::Null)) {
            *node = Node::Map(IndexMap::new());
        }
        node = match node {
            Node::Map(map) => map.entry(key.to_owned()).or_insert(Node::Scalar(Value::Null)),
            Node::List(list) => {
                let length = list.len();
                let index = key.parse::<usize>().ok().filter(|index| *index < length);
                &mut list[index.ok_or_else(|| format!("`{key}` is not an index of a list of {length}"))?]
            }
            Node::Scalar(_) => return Err(format!("`{key}` is below a value that is not a section")),
        };
    }
    *node = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "models:\n  small: {emulated: {latency_ms: 6}}\n  large: {threads: 1}\nbatching:\n  thresholds: [1, 4]\n";

    #[test]
    fn keys_are_set_and_their_order_is_kept() {
        let sets =
            ["models.large.emulated.latency_ms=[27.9, 28]", "batching.thresholds.1=2", "routing={method: random}"];
        let set = apply(TEXT, "x", &sets.map(str::to_owned)).expect("applies");
        let value: Node = serde_saphyr::from_str(&set).expect("still YAML");
        let want = r#"{"models":{"small":{"emulated":{"latency_ms":6}},"large":{"threads":1,"emulated":{"latency_ms":[27.9,28]}}},"batching":{"thresholds":[1,2]},"routing":{"method":"random"}}"#;
        assert_eq!(serde_json::to_string(&value).expect("JSON"), want);
        assert_eq!(apply(TEXT, "x", &[]).expect("applies"), TEXT);
    }

    #[test]
    fn mistakes_are_named() {
        for (set, says) in [
            ("a", "expected KEY=VALUE"),
            ("a..b=1", "expected KEY=VALUE"),
            ("batching.thresholds.7=1", "`7` is not an index of a list of 2"),
            ("models.large.threads.x=1", "`x` is below a value"),
            ("a=[", "--set `a=[`"),
        ] {
            let why = apply(TEXT, "x", &[set.to_owned()]).expect_err("refused").to_string();
            assert!(why.contains(says), "{why}");
        }
    }
}
