//! YAML as a tree in which every value knows its place.

use std::ops::Range;

use indexmap::IndexMap;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_saphyr::{Location, Spanned};

use super::error::Place;

/// A value and its place: that of its key, or its own where it has none (entries of lists, the root).
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

/// What YAML says. Maps keep their order: that of the models matters.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    /// A number or a boolean without quotes, and how it is written: it may be meant as text.
    Plain(Scalar, String),
    Text(String),
    List(Vec<Node>),
    Map(IndexMap<String, Node>),
}

/// Numbers and booleans.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
pub(super) enum Scalar {
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float(f64),
}

impl Node {
    /// Parses a text whose places are its lines.
    pub(super) fn parse(text: &str) -> Result<Self, serde_saphyr::Error> {
        let raw: Spanned<Raw> = serde_saphyr::from_str(text)?;
        let place = in_text(raw.defined);
        Ok(Self::build(raw, place, &Source { text, place: in_text }))
    }

    /// Parses a text that is at `place` as a whole.
    pub(super) fn parse_at(text: &str, place: &Place) -> Result<Self, serde_saphyr::Error> {
        let raw: Spanned<Raw> = serde_saphyr::from_str(text)?;
        Ok(Self::build(raw, place.clone(), &Source { text, place: |_| place.clone() }))
    }

    fn build<F: Fn(Location) -> Place>(raw: Spanned<Raw>, place: Place, source: &Source<'_, F>) -> Self {
        let value = match raw.value {
            Raw::Null => Value::Null,
            Raw::Scalar(scalar) => Value::Plain(scalar, source.slice(raw.defined)),
            Raw::Text(text) => Value::Text(text),
            Raw::List(items) => {
                let items = items.into_iter().map(|item| {
                    let place = (source.place)(item.defined);
                    Self::build(item, place, source)
                });
                Value::List(items.collect())
            }
            Raw::Map(entries) => {
                let entries = entries.into_iter().map(|Entry { key, value }| {
                    let place = (source.place)(key.defined);
                    (key.value, Self::build(value, place, source))
                });
                Value::Map(entries.collect())
            }
        };
        Self { place, value }
    }

    /// The place of the value at `path`, or of what is nearest above it where the text does not give it.
    pub(super) fn place_of(&self, path: &[String]) -> &Place {
        let below = path.split_first().and_then(|(key, rest)| Some((self.child(key)?, rest)));
        below.map_or(&self.place, |(child, rest)| child.place_of(rest))
    }

    fn child(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(entries) => entries.get(key),
            Value::List(items) => items.get(key.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// Puts a value at a path of keys and indices of lists; makes the sections on the way.
    pub(super) fn put(&mut self, path: &str, value: Self) -> Result<(), String> {
        let mut node = self;
        for key in path.split('.') {
            if matches!(node.value, Value::Null) {
                node.value = Value::Map(IndexMap::new());
            }
            node = match &mut node.value {
                Value::Map(entries) => {
                    let missing = || Self { place: value.place.clone(), value: Value::Null };
                    entries.entry(key.to_owned()).or_insert_with(missing)
                }
                Value::List(items) => {
                    let length = items.len();
                    let index = key.parse::<usize>().ok().filter(|index| *index < length);
                    &mut items[index.ok_or_else(|| format!("`{key}` is not an index of a list of {length}"))?]
                }
                _ => return Err(format!("`{key}` is below a value that is not a section")),
            };
        }
        *node = value;
        Ok(())
    }
}

/// The text of a tree, and how its locations become places.
struct Source<'a, F> {
    text: &'a str,
    place: F,
}

impl<F> Source<'_, F> {
    /// How the scalar at a location is written.
    fn slice(&self, location: Location) -> String {
        let span = location.span();
        let range = span.byte_offset().zip(span.byte_len()).and_then(|(start, length)| {
            let start = usize::try_from(start).ok()?;
            Some(Range { start, end: start + usize::try_from(length).ok()? })
        });
        range.and_then(|range| self.text.get(range)).unwrap_or_default().to_owned()
    }
}

fn in_text(location: Location) -> Place {
    Place::Text { line: location.line(), column: location.column() }
}

/// As JSON, which is YAML.
impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.value {
            Value::Null => serializer.serialize_unit(),
            Value::Plain(scalar, _) => scalar.serialize(serializer),
            Value::Text(text) => serializer.serialize_str(text),
            Value::List(items) => items.serialize(serializer),
            Value::Map(entries) => entries.serialize(serializer),
        }
    }
}

/// What the YAML library reads, with its locations.
enum Raw {
    Null,
    Scalar(Scalar),
    Text(String),
    List(Vec<Spanned<Self>>),
    Map(Vec<Entry>),
}

struct Entry {
    key: Spanned<String>,
    value: Spanned<Raw>,
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Scalar(Scalar::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Scalar::Int(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Scalar::UInt(value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Scalar::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key()? {
            entries.push(Entry { key, value: access.next_value()? });
        }
        Ok(Raw::Map(entries))
    }
}

/// The number or boolean that a text in quotes holds: `"4"` is taken where a number is needed.
pub(super) fn unquoted(text: &str) -> Option<Scalar> {
    match serde_saphyr::from_str(text) {
        Ok(Raw::Scalar(scalar)) => Some(scalar),
        _ => None,
    }
}
