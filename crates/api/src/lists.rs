//! Values of fields that serde's own types do not say exactly.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Marks the schema of an [`Only`].
pub(crate) const UNSUPPORTED: &str = "x-unsupported";

/// A field that other servers know and this one does not: accepted where it asks for nothing. Its schema lists the values
/// that do (`#[schemars(extend("enum" = [..]))]`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Only(Value);

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

/// The number of most likely tokens to draw from; 0 is all of them, which some clients write as -1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TopK(pub u64);

impl<'de> Deserialize<'de> for TopK {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl serde::de::Visitor<'_> for Number {
            type Value = TopK;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("u64")
            }

            fn visit_u64<E>(self, value: u64) -> Result<TopK, E> {
                Ok(TopK(value))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<TopK, E> {
                match value {
                    -1 => Ok(TopK(0)),
                    other => Err(E::invalid_value(Unexpected::Signed(other), &self)),
                }
            }
        }
        deserializer.deserialize_u64(Number)
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
