//! The first words on a connection: who is there, and whether both have the same system in mind.

use std::io;
use std::time::Instant;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::connection::{Incoming, Secure, frame};
use tokenrouter_core::request::ModelIndex;
use tokenrouter_core::transport::PROTOCOL_VERSION;

const MAGIC: &[u8; 8] = b"trouter\n";
/// Longest greeting, and longest refusal.
const MAX_HELLO: usize = 1 << 16;

/// What a system is, by name: must be the same at all nodes.
pub(crate) type NodeFacts = IndexMap<String, String>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hello {
    model: String,
    facts: NodeFacts,
}

/// A connection came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Mismatch(String),
}

/// Greets; returns the index of the model at the other end. `find` says whether a model may be there.
pub(super) fn exchange(
    connection: &Secure,
    incoming: &mut Incoming,
    (model, facts): (&str, &NodeFacts),
    find: &dyn Fn(&str) -> Result<ModelIndex, String>,
    deadline: Instant,
) -> Result<ModelIndex, Refusal> {
    let hello = Hello { model: model.to_owned(), facts: facts.clone() };
    let mut content = MAGIC.to_vec();
    content.extend(PROTOCOL_VERSION.to_le_bytes());
    content.extend(serde_json::to_vec(&hello).map_err(io::Error::other)?);
    connection.send(&frame(&content))?;
    let result = connection.receive(incoming, MAX_HELLO, Some(deadline), |frame| judge(frame, facts, find))?;
    // The other end learns why, in the words of this one.
    connection.send(&frame(result.as_ref().err().map_or("", String::as_str).as_bytes()))?;
    let peer = result.map_err(Refusal::Mismatch)?;
    let verdict = |frame: &[u8]| String::from_utf8_lossy(frame).into_owned();
    match connection.receive(incoming, MAX_HELLO, Some(deadline), verdict)?.as_str() {
        "" => Ok(peer),
        why => Err(Refusal::Mismatch(format!("refused by the other end: {}", printable(why)))),
    }
}

/// Reads a greeting; the error says what does not fit.
fn judge(
    frame: &[u8],
    facts: &NodeFacts,
    find: &dyn Fn(&str) -> Result<ModelIndex, String>,
) -> Result<ModelIndex, String> {
    let rest = frame.strip_prefix(MAGIC).ok_or("the other end is no TokenRouter node")?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or("the greeting has no protocol version")?;
    let theirs = u16::from_le_bytes(*version);
    if theirs != PROTOCOL_VERSION {
        return Err(format!("protocol version: {PROTOCOL_VERSION} here, {theirs} at the other end"));
    }
    let hello: Hello = serde_json::from_slice(rest).map_err(|error| format!("the greeting cannot be read: {error}"))?;
    let name = printable(&hello.model);
    let peer = find(&hello.model)?;
    compare(facts, &hello.facts, &name)?;
    Ok(peer)
}

/// Names everything in which two nodes differ.
fn compare(here: &NodeFacts, there: &NodeFacts, peer: &str) -> Result<(), String> {
    let names = here.keys().chain(there.keys().filter(|name| !here.contains_key(*name)));
    let value = |facts: &NodeFacts, name: &str| facts.get(name).map_or("nothing".to_owned(), |value| printable(value));
    let differences: Vec<String> = names
        .filter(|name| here.get(*name) != there.get(*name))
        .map(|name| {
            format!("`{}` is {} here and {} at model `{peer}`", printable(name), value(here, name), value(there, name))
        })
        .collect();
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!("the nodes have different configurations: {}", differences.join("; ")))
}

/// What others send is logged without its control characters, and not at any length.
fn printable(text: &str) -> String {
    text.chars().take(2000).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(list: &[(&str, &str)]) -> NodeFacts {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn differences_are_named() {
        let here = facts(&[("system.max_active", "8"), ("routing.method", "random")]);
        assert_eq!(compare(&here, &here.clone(), "large"), Ok(()));
        let there = facts(&[("system.max_active", "9"), ("routing.method", "random"), ("new", "1")]);
        let error = compare(&here, &there, "large").expect_err("they differ");
        assert!(error.contains("`system.max_active` is 8 here and 9 at model `large`"), "{error}");
        assert!(error.contains("`new` is nothing here and 1") && !error.contains("routing.method"), "{error}");
    }

    #[test]
    fn strange_greetings_are_refused() {
        let here = facts(&[]);
        let find: &dyn Fn(&str) -> Result<ModelIndex, String> = &|_| Ok(1);
        let judge = |bytes: &[u8]| judge(bytes, &here, find);
        assert!(judge(b"GET / HTTP/1.1\r\n").expect_err("HTTP").contains("no TokenRouter node"));
        let greeting = |version: u16, rest: &[u8]| [&MAGIC[..], &version.to_le_bytes(), rest].concat();
        let error = judge(&greeting(9, b"")).expect_err("another version");
        assert_eq!(error, "protocol version: 1 here, 9 at the other end");
        assert!(judge(&greeting(PROTOCOL_VERSION, b"{")).is_err());
        assert_eq!(judge(&greeting(PROTOCOL_VERSION, br#"{"model": "large", "facts": {}}"#)), Ok(1));
    }
}
