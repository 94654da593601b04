//! Values of fields that serde's own types do not say exactly.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Marks the schema of an [`Only`].
pub(crate) const UNSUPPORTED: &str = "x-unsupported";

/// A field that other servers know and this one does not: accepted where it asks for nothing, which is what its default
/// does. Its schema lists the values that do: `table!` writes them down.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Only(Value);

impl Only {
    /// What the client sent; null where it sent nothing.
    pub fn value(&self) -> &Value {
        &self.0
    }
}

impl JsonSchema for Only {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Only".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({UNSUPPORTED: true})
    }
}

/// A struct of [`Only`] fields, each with the values that it may have; null is always one. Other values are refused by
/// name, so a client may send any field of another server as long as it asks for nothing special.
macro_rules! table {
    ($(#[$about:meta])* $name:ident { $($field:ident: $values:tt,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(default)]
        #[allow(missing_docs)]
        pub struct $name {
            $(#[schemars(extend("enum" = $values))] pub $field: $crate::Only,)+
        }
    };
}
pub(crate) use table;

/// Whether two values are the same in JSON, where 1 and 1.0 are one number.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

/// Reads a value whole, or says what is expected.
pub(crate) fn whole<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &str,
    take: impl FnOnce(Value) -> Option<T>,
) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    take(value).ok_or_else(|| D::Error::invalid_type(Unexpected::Other("another value"), &expected))
}

/// Token ids.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct TokenIds(pub Vec<u32>);

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ids = |value| serde_json::from_value(value).ok();
        whole(deserializer, "a list of token ids", |value| ids(value).map(Self))
    }
}

/// A text or a list of texts.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Texts {
    /// One.
    One(String),
    /// Several, or none.
    Several(Vec<String>),
}

impl Texts {
    /// All of them.
    pub fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Several(texts) => texts,
        }
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        whole(deserializer, "a text or a list of texts", |value| match value {
            Value::String(text) => Some(Self::One(text)),
            list => serde_json::from_value(list).ok().map(Self::Several),
        })
    }
}

/// A whole number that clients may write with a sign, or as 5.0.
struct Whole<T> {
    expected: &'static str,
    unsigned: fn(u64) -> Option<T>,
    signed: fn(i64) -> Option<T>,
}

impl<T> serde::de::Visitor<'_> for Whole<T> {
    type Value = T;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        (self.unsigned)(value).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(value), &self))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        (self.signed)(value).ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }
}

/// The number of most likely tokens to draw from; 0 is all of them, which some clients write as -1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TopK(pub u64);

impl<'de> Deserialize<'de> for TopK {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = |value| (value == -1).then_some(Self(0));
        deserializer.deserialize_u64(Whole { expected: "u64", unsigned: |value| Some(Self(value)), signed: all })
    }
}

impl JsonSchema for TopK {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "TopK".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": -1})
    }
}

/// The seed of a request's draws: any integer of 64 bits. -1 asks for a new one, as in vLLM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(Option<u64>);

impl From<u64> for Seed {
    fn from(seed: u64) -> Self {
        Self(Some(seed))
    }
}

impl Seed {
    /// The seed, where the client chose one.
    pub fn chosen(self) -> Option<u64> {
        self.0
    }
}

impl Serialize for Seed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(seed) => serializer.serialize_u64(seed),
            None => serializer.serialize_i64(-1),
        }
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(Whole {
            expected: "an integer of 64 bits",
            unsigned: |value| Some(Self(Some(value))),
            // A negative seed is the one with the same bits.
            signed: |value| Some(Self((value != -1).then_some(value as u64))),
        })
    }
}

impl JsonSchema for Seed {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Seed".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX})
    }
}
