//! JSON values as a source for serde whose errors say where they are, what is there, and what is allowed.
//!
//! `serde_path_to_error` gives the place, but only the text of serde_json's error beside it; here the error keeps what was
//! expected, and fields that are null count as absent.

use std::fmt;

use serde::de::value::{BorrowedStrDeserializer, StrDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, Error as _, Expected, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// Why a body was refused.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    /// The field, as in `messages[0].role`; empty for the body itself.
    pub field: String,
    /// What it holds; null where it is missing.
    pub value: Value,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Problem {
    /// There is no such field; these are the ones that do something.
    Unknown(Vec<String>),
    /// The field is accepted only with one of these values, or with null.
    Unsupported(Vec<Value>),
    /// The field is one of several words, and this is none of them.
    Variant(&'static [&'static str]),
    /// The field is needed.
    Missing,
    /// The value is of another kind; this one is expected, as in "a number".
    Wrong(String),
    /// Anything else, as what is said of the field: "has a part that ...".
    Other(String),
}

/// Serde's terms in the words of the API.
fn words(expected: &str) -> String {
    let words = match expected {
        "u64" | "u32" | "usize" => "an integer, 0 or more",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "a text",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    words.to_owned()
}

/// An error on its way out of serde: it gets its place from the innermost value that it passes.
#[derive(Debug)]
pub(crate) struct Raised {
    problem: Problem,
    placed: Option<(String, Value)>,
    /// The field below the place, where it is missing there.
    name: Option<&'static str>,
}

impl Raised {
    fn wrong(expected: &dyn Expected) -> Self {
        Self { problem: Problem::Wrong(words(&expected.to_string())), placed: None, name: None }
    }

    fn at(mut self, place: &Place<'_, '_>) -> Self {
        if self.placed.is_none() {
            self.placed = Some(match self.name {
                Some(name) => (Path::Field(&place.path, name).to_string(), Value::Null),
                None => (place.path.to_string(), place.value.clone()),
            });
        }
        self
    }
}

impl From<Raised> for FieldError {
    fn from(raised: Raised) -> Self {
        let (field, value) = raised.placed.unwrap_or_default();
        Self { field, value, problem: raised.problem }
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.problem)
    }
}

impl std::error::Error for Raised {}

impl de::Error for Raised {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { problem: Problem::Other(message.to_string()), placed: None, name: None }
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::wrong(expected)
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::wrong(expected)
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::wrong(expected)
    }

    fn missing_field(field: &'static str) -> Self {
        Self { problem: Problem::Missing, placed: None, name: Some(field) }
    }
}

/// The way from the body to a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Path<'p> {
    Body,
    Field(&'p Path<'p>, &'p str),
    Item(&'p Path<'p>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body => Ok(()),
            Self::Field(Path::Body, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// A value and where it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'de, 'p> {
    pub(crate) value: &'de Value,
    pub(crate) path: Path<'p>,
}

/// The fields of an object. An error that a type raises after it has read a value belongs to that value.
struct Fields<'de, 'p, I> {
    fields: I,
    current: Option<Place<'de, 'p>>,
}

impl<'de, 'p, I: Iterator<Item = (&'de str, Place<'de, 'p>)>> MapAccess<'de> for Fields<'de, 'p, I> {
    type Error = Raised;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Raised> {
        let Some((name, place)) = self.fields.next() else { return Ok(None) };
        self.current = Some(place);
        seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Raised> {
        let place = self.current.take().ok_or_else(|| Raised::custom("a value was read before its name"))?;
        seed.deserialize(place).map_err(|error| error.at(&place))
    }
}

/// The items of a list, likewise.
struct Items<I>(I);

impl<'de, 'p, I: Iterator<Item = Place<'de, 'p>>> SeqAccess<'de> for Items<I> {
    type Error = Raised;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Raised> {
        let Some(place) = self.0.next() else { return Ok(None) };
        seed.deserialize(place).map_err(|error| error.at(&place)).map(Some)
    }
}

impl<'de> Place<'de, '_> {
    /// Gives the fields of an object to a visitor, without those that are null where `nulls` is false.
    fn fields<V: Visitor<'de>>(self, nulls: bool, visitor: V) -> Result<V::Value, Raised> {
        let Value::Object(map) = self.value else { return Err(Raised::wrong(&visitor)) };
        let fields = map.iter().filter(|(_, value)| nulls || !value.is_null());
        let fields = fields.map(|(name, value)| (name.as_str(), Place { value, path: Path::Field(&self.path, name) }));
        visitor.visit_map(Fields { fields, current: None })
    }

    fn any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Raised> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(value), ..) => visitor.visit_u64(value),
                (None, Some(value), _) => visitor.visit_i64(value),
                (None, None, value) => visitor.visit_f64(value.unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(list) => {
                let items = list.iter().enumerate();
                visitor
                    .visit_seq(Items(items.map(|(index, value)| Place { value, path: Path::Item(&self.path, index) })))
            }
            Value::Object(_) => self.fields(true, visitor),
        }
    }
}

impl<'de> Deserializer<'de> for Place<'de, '_> {
    type Error = Raised;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Raised> {
        self.any(visitor).map_err(|error| error.at(&self))
    }

    /// Some clients write 5.0.
    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Raised> {
        let whole = |value: &f64| value.fract() == 0.0 && (0.0..=2f64.powi(53)).contains(value);
        match self.value.as_f64().filter(whole).filter(|_| !self.value.is_u64()) {
            Some(value) => visitor.visit_u64(value as u64),
            None => self.any(visitor),
        }
        .map_err(|error| error.at(&self))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Raised> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Raised> {
        visitor.visit_newtype_struct(self)
    }

    /// A field that is null is as good as absent.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Raised> {
        self.fields(false, visitor).map_err(|error| error.at(&self))
    }

    /// One of several words.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Raised> {
        match self.value.as_str().filter(|word| variants.contains(word)) {
            Some(word) => visitor.visit_enum(StrDeserializer::new(word)),
            None => Err(Raised { problem: Problem::Variant(variants), placed: None, name: None }),
        }
        .map_err(|error| error.at(&self))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}
