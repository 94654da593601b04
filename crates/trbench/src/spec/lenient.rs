//! Reading the values of a spec: everything is written as it would be on a command line, so that `4`, `'4'` and `[4]` are
//! the same list of concurrencies.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// A single value as text.
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarVisitor;
        impl Visitor<'_> for ScalarVisitor {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_str<E: Error>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar(value.to_owned()))
            }
            fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
        }
        deserializer.deserialize_any(ScalarVisitor)
    }
}

/// Values of a list, or one value in its place.
struct Scalars(Vec<Scalar>);

impl<'de> Deserialize<'de> for Scalars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarsVisitor;
        impl<'de> Visitor<'de> for ScalarsVisitor {
            type Value = Scalars;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value or a list of values")
            }
            fn visit_str<E: Error>(self, value: &str) -> Result<Scalars, E> {
                Ok(Scalars(vec![Scalar(value.to_owned())]))
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<Scalars, E> {
                self.visit_str(&value.to_string())
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Scalars, E> {
                self.visit_str(&value.to_string())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Scalars, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push(value);
                }
                Ok(Scalars(values))
            }
        }
        deserializer.deserialize_any(ScalarsVisitor)
    }
}

fn parse<T: FromStr<Err: fmt::Display>, E: Error>(text: &str) -> Result<T, E> {
    text.parse().map_err(|error| E::custom(format!("invalid value '{text}': {error}")))
}

/// A value.
pub(super) fn one<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(deserializer: D) -> Result<T, D::Error> {
    parse(&Scalar::deserialize(deserializer)?.0)
}

/// A value, or `null`.
pub(super) fn optional<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    Option::<Scalar>::deserialize(deserializer)?.map(|scalar| parse(&scalar.0)).transpose()
}

/// A list whose values may also be separated by commas.
pub(super) fn list<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let scalars = Scalars::deserialize(deserializer)?.0;
    scalars.iter().flat_map(|scalar| scalar.0.split(',')).map(parse).collect()
}

/// A list whose values may have commas.
pub(super) fn whole_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Scalars::deserialize(deserializer)?.0.into_iter().map(|scalar| scalar.0).collect())
}
