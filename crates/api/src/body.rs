//! Bodies of requests: the names of their fields are checked against their type, then they are read.

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::lists::{UNSUPPORTED, same};
use crate::place::{FieldError, Path, Place, Problem};

/// The body of a request. Its fields may come from several types; [`Body::read_parts`] reads each from the same object.
pub trait Body: JsonSchema + Sized + 'static {
    /// The type's schema, made once.
    fn schema() -> &'static Schema;

    /// Reads every part.
    ///
    /// # Errors
    /// If a field is missing or of another kind than its type says.
    fn read_parts(body: &Value) -> Result<Self, FieldError>;
}

/// Implements [`Body`] for a struct that serde reads, or whose fields are flattened parts, each of which serde reads.
macro_rules! body {
    ($name:ident) => {
        $crate::body::body!($name, |body| $crate::body::part(body));
    };
    ($name:ident { $($part:ident),+ }) => {
        $crate::body::body!($name, |body| Ok($name { $($part: $crate::body::part(body)?),+ }));
    };
    ($name:ident, |$body:ident| $read:expr) => {
        impl $crate::body::Body for $name {
            fn schema() -> &'static schemars::Schema {
                static SCHEMA: std::sync::LazyLock<schemars::Schema> =
                    std::sync::LazyLock::new(|| schemars::schema_for!($name));
                &SCHEMA
            }

            fn read_parts($body: &serde_json::Value) -> Result<Self, $crate::place::FieldError> {
                $read
            }
        }
    };
}
pub(crate) use body;

/// Reads one part of a body; fields of other parts are passed over.
pub(crate) fn part<T: for<'de> Deserialize<'de>>(body: &Value) -> Result<T, FieldError> {
    Ok(T::deserialize(Place { value: body, path: Path::Body })?)
}

/// Reads a body.
///
/// # Errors
/// The first field that is unknown, unsupported, missing or of another kind. A body that is no object is wrong itself:
/// the error's `field` is empty.
pub fn read<T: Body>(body: &Value) -> Result<T, FieldError> {
    if !body.is_object() {
        let problem = Problem::Wrong("a JSON object".into());
        return Err(FieldError { field: String::new(), value: body.clone(), problem });
    }
    let schema = T::schema().as_value();
    check(Place { value: body, path: Path::Body }, schema, schema)?;
    T::read_parts(body)
}

/// A request as a client sends it: null fields are left out, since absent means the same.
pub fn to_json<T: Serialize>(request: &T) -> Value {
    let mut value = serde_json::to_value(request).unwrap_or_default();
    if let Value::Object(map) = &mut value {
        map.retain(|_, value| !value.is_null());
    }
    value
}

/// Refuses fields that the schema does not have, and unsupported ones that ask for something, here and in objects below.
fn check(place: Place<'_, '_>, schema: &Value, root: &Value) -> Result<(), FieldError> {
    let (Some(map), Some(properties)) = (place.value.as_object(), properties(schema, root)) else { return Ok(()) };
    for (name, value) in map.iter().filter(|(_, value)| !value.is_null()) {
        let path = Path::Field(&place.path, name);
        let refused = |problem| FieldError { field: path.to_string(), value: value.clone(), problem };
        let Some(property) = properties.get(name) else {
            let known = properties.iter().filter(|(_, property)| property.get(UNSUPPORTED).is_none());
            return Err(refused(Problem::Unknown(known.map(|(name, _)| name.clone()).collect())));
        };
        if property.get(UNSUPPORTED).is_some() {
            let allowed = property["enum"].as_array().into_iter().flatten();
            if !allowed.clone().any(|allowed| same(allowed, value)) {
                let allowed = allowed.filter(|allowed| !allowed.is_null()).cloned().collect();
                return Err(refused(Problem::Unsupported(allowed)));
            }
        }
        check(Place { value, path }, property, root)?;
    }
    Ok(())
}

/// The fields of an object that has no others.
fn properties<'s>(schema: &'s Value, root: &'s Value) -> Option<&'s Map<String, Value>> {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return properties(root.pointer(reference.strip_prefix('#')?)?, root);
    }
    if let Some(any) = schema.get("anyOf").and_then(Value::as_array) {
        return any.iter().find_map(|schema| properties(schema, root));
    }
    let closed =
        ["additionalProperties", "unevaluatedProperties"].iter().any(|key| schema.get(key) == Some(&false.into()));
    schema.get("properties").and_then(Value::as_object).filter(|_| closed)
}
