//! The `routing` section: a method's name and that method's own options.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::registry;
use crate::names::list;

/// `routing: {method: NAME, ...}`. Which options there are depends on the method; its registry entry checks them when the
/// configuration is validated.
#[derive(Debug, Clone)]
pub struct RoutingConfig {
    /// Name of the routing method, as registered.
    pub method: String,
    /// The method's options.
    pub options: serde_json::Map<String, Value>,
}

impl RoutingConfig {
    /// A method with its options, for use from code.
    pub fn new(method: &str, options: Value) -> Self {
        Self { method: method.to_owned(), options: options.as_object().cloned().unwrap_or_default() }
    }

    /// Takes relative paths in the options from `folder`.
    pub fn resolve_paths(&mut self, folder: &std::path::Path) {
        for option in registry::find(&self.method).map_or(&[][..], |entry| entry.paths) {
            if let Some(Value::String(path)) = self.options.get_mut(*option)
                && !path.is_empty()
            {
                *path = folder.join(&*path).to_string_lossy().into_owned();
            }
        }
    }

    /// The options as the method's own type.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_value(Value::Object(self.options.clone()))
            .map_err(|error| format!("routing method `{}`: {error}", self.method))
    }
}

impl<'de> Deserialize<'de> for RoutingConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut map = IndexMap::<String, Value>::deserialize(deserializer)?;
        let method = map.shift_remove("method").ok_or_else(|| {
            let message = format!("key `method` is missing in `routing`, allowed are {}", list(&registry::names()));
            serde::de::Error::custom(message)
        })?;
        // Whether there is such a method, and what it makes of the options, is for the validation to say: it knows places.
        let method = method.as_str().map_or_else(|| method.to_string(), str::to_owned);
        Ok(Self { method, options: map.into_iter().collect() })
    }
}

impl Serialize for RoutingConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serde_json::Map::new();
        map.insert("method".into(), Value::String(self.method.clone()));
        map.extend(self.options.clone());
        map.serialize(serializer)
    }
}

impl JsonSchema for RoutingConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RoutingConfig".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "object",
            "properties": {"method": {"type": "string", "enum": registry::names()}},
            "required": ["method"]
        })
    }
}
