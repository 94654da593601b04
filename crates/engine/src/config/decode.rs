//! Typed values from a tree of YAML. An error is placed at the key or list entry in which it arises, whichever type
//! raised it.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, Expected, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

use super::error::Place;
use super::node::{Node, Scalar, Value, unquoted};
use super::{list, nearest};

/// The value of a tree.
pub(super) fn decode<'de, T: Deserialize<'de>>(root: &'de Node) -> Result<T, Located> {
    T::deserialize(root).map_err(|error| {
        let error = error.of(root);
        let message = error.message();
        Located { place: error.place.unwrap_or(Place::Whole), message }
    })
}

/// What is wrong, and where.
pub(super) struct Located {
    pub(super) place: Place,
    pub(super) message: String,
}

/// An error on its way up: it learns its place where it leaves the value in which it arose, and its name at the next key.
#[derive(Debug)]
pub(super) struct DecodeError {
    place: Option<Place>,
    /// `entry 2 of entry 1` until the key is known.
    name: Option<String>,
    named: bool,
    /// The value, as messages show it.
    given: Option<String>,
    fault: Fault,
}

#[derive(Debug)]
enum Fault {
    /// A value of the wrong type or outside of a range, and what is allowed.
    Wrong(String),
    Said(String),
}

impl From<Fault> for DecodeError {
    fn from(fault: Fault) -> Self {
        Self { place: None, name: None, named: false, given: None, fault }
    }
}

impl DecodeError {
    fn wrong(expected: &str) -> Self {
        Fault::Wrong(expected.to_owned()).into()
    }

    fn message(&self) -> String {
        let name = self.name.as_deref().unwrap_or("the configuration");
        let given = self.given.as_deref().unwrap_or_default();
        match &self.fault {
            Fault::Wrong(expected) => format!("{name} is {given}, allowed is {expected}"),
            // Our own messages name the key or value in backticks; those of libraries do not.
            Fault::Said(message) if message.contains('`') => message.clone(),
            Fault::Said(message) => format!("{name} is {given}: {message}"),
        }
    }

    /// The error arose in this node, unless a node further below had it first.
    fn of(mut self, node: &Node) -> Self {
        self.place.get_or_insert_with(|| node.place.clone());
        self.given.get_or_insert_with(|| describe(&node.value));
        self
    }

    fn of_entry(self, index: usize, node: &Node) -> Self {
        let mut error = self.of(node);
        if !error.named {
            let below = error.name.map(|name| format!("{name} of ")).unwrap_or_default();
            error.name = Some(format!("{below}entry {}", index + 1));
        }
        error
    }

    fn of_key(self, key: &str, node: &Node) -> Self {
        let mut error = self.of(node);
        if !error.named {
            let below = error.name.map(|name| format!("{name} of ")).unwrap_or_default();
            error.name = Some(format!("{below}`{key}`"));
            error.named = true;
        }
        error
    }
}

impl std::error::Error for DecodeError {}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message())
    }
}

impl de::Error for DecodeError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Fault::Said(message.to_string()).into()
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::wrong(&plain_words(&expected.to_string()))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::wrong(&plain_words(&expected.to_string()))
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::wrong(&plain_words(&expected.to_string()))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let hint = nearest(variant, expected.iter().copied());
        Self::custom(format!("unknown value `{variant}`, allowed are {}{hint}", list(expected)))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let hint = nearest(field, expected.iter().copied());
        Self::custom(format!("unknown key `{field}`, allowed are {}{hint}", list(expected)))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::custom(format!("key `{field}` is missing"))
    }
}

/// What serde's types call themselves, for people who write YAML.
fn plain_words(expected: &str) -> String {
    let words = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "`true` or `false`",
        "a string" => "text",
        "path string" => "a path",
        "a sequence" => "a list",
        other => return other.replace("an array of length", "a list of length"),
    };
    words.to_owned()
}

/// A value as messages show it.
fn describe(value: &Value) -> String {
    const SHOWN: usize = 60;
    let quote = |text: &str| {
        let shown: String = text.chars().take_while(|c| !c.is_control()).take(SHOWN).collect();
        let more = if shown.len() < text.len() { "..." } else { "" };
        format!("`{shown}{more}`")
    };
    match value {
        Value::Null => "empty".into(),
        Value::Plain(_, text) | Value::Text(text) => quote(text),
        Value::List(items) => format!("a list of {}", items.len()),
        Value::Map(_) => "a section of keys".into(),
    }
}

const SECTION: &str = "a section of keys";

/// `key:value` is text: the space is easily forgotten.
fn not_a_section(node: &Node) -> DecodeError {
    match &node.value {
        Value::Text(text) if text.contains(':') && !text.contains(": ") => {
            DecodeError::wrong(&format!("{SECTION}; is a space missing after `:`?"))
        }
        _ => DecodeError::wrong(SECTION),
    }
}

/// Gives the visitor a number or boolean, also one in quotes.
fn visit_scalar<'de, V: Visitor<'de>>(node: &'de Node, visitor: V) -> Result<V::Value, DecodeError> {
    let scalar = match &node.value {
        Value::Plain(scalar, _) => Some(*scalar),
        Value::Text(text) => unquoted(text),
        _ => None,
    };
    match scalar {
        Some(Scalar::Bool(value)) => visitor.visit_bool(value),
        Some(Scalar::Int(value)) => visitor.visit_i64(value),
        Some(Scalar::UInt(value)) => visitor.visit_u64(value),
        Some(Scalar::Float(value)) => visitor.visit_f64(value),
        None => node.deserialize_any(visitor),
    }
}

macro_rules! scalars {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            visit_scalar(self, visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Plain(..) => visit_scalar(self, visitor),
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::List(items) => Items::visit(items, visitor),
            Value::Map(entries) => visitor.visit_map(Entries { rest: entries.iter(), value: None }),
        }
    }

    scalars! { deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8
    deserialize_u16 deserialize_u32 deserialize_u64 deserialize_f32 deserialize_f64 }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match &self.value {
            Value::Plain(_, text) => visitor.visit_borrowed_str(text),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        match &self.value {
            Value::Plain(_, text) | Value::Text(text) => {
                visitor.visit_enum(BorrowedStrDeserializer::<DecodeError>::new(text))
            }
            _ => Err(DecodeError::wrong(&format!("one of {}", list(variants)))),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match &self.value {
            Value::Map(_) => self.deserialize_any(visitor),
            _ => Err(not_a_section(self)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.deserialize_map(visitor)
    }

    forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct seq tuple tuple_struct identifier ignored_any
    }
}

/// Entries of a list.
struct Items<'de> {
    items: &'de [Node],
    next: usize,
}

impl<'de> Items<'de> {
    fn visit<V: Visitor<'de>>(items: &'de [Node], visitor: V) -> Result<V::Value, DecodeError> {
        let mut access = Self { items, next: 0 };
        let value = visitor.visit_seq(&mut access)?;
        match access.next {
            taken if taken < items.len() => Err(DecodeError::wrong(&format!("a list of length {taken}"))),
            _ => Ok(value),
        }
    }
}

impl<'de> de::SeqAccess<'de> for Items<'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Self::Error> {
        let Some(node) = self.items.get(self.next) else { return Ok(None) };
        let value = seed.deserialize(node).map_err(|error| error.of_entry(self.next, node))?;
        self.next += 1;
        Ok(Some(value))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len() - self.next)
    }
}

/// Entries of a section.
struct Entries<'de> {
    rest: indexmap::map::Iter<'de, String, Node>,
    value: Option<(&'de str, &'de Node)>,
}

impl<'de> de::MapAccess<'de> for Entries<'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Self::Error> {
        let Some((key, node)) = self.rest.next() else { return Ok(None) };
        self.value = Some((key, node));
        let key: BorrowedStrDeserializer<'_, DecodeError> = BorrowedStrDeserializer::new(key);
        seed.deserialize(key).map(Some).map_err(|error| error.of(node))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Self::Error> {
        let (key, node) = self.value.take().expect("a key comes before its value");
        seed.deserialize(node).map_err(|error| error.of_key(key, node))
    }
}
