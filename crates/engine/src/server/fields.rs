//! Fields of a JSON body: typed access with errors that name the field, its value and what is allowed.

use serde_json::{Map, Value, json};

use super::ApiError;
use crate::config::{list, nearest};

/// The fields of an object in a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Where the object is, with a dot at the end; empty for the body itself.
    place: &'static str,
}

/// A field that is understood only when it asks for nothing: its name and the values that do so, as JSON.
pub(super) type Unsupported = (&'static str, &'static str);

impl<'a> Fields<'a> {
    /// Of a body.
    pub(super) fn of(body: &'a Value) -> Result<Self, ApiError> {
        let map = body.as_object().ok_or_else(|| ApiError::bad_request("the body must be a JSON object"))?;
        Ok(Self { map, place: "" })
    }

    /// Of the object `name`; `place` is its name with a dot. Absent and null are an object without fields.
    pub(super) fn object(self, name: &str, place: &'static str) -> Result<Self, ApiError> {
        static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
        match self.get(name) {
            None => Ok(Self { map: &EMPTY, place }),
            Some(Value::Object(map)) => Ok(Self { map, place }),
            Some(value) => Err(self.wrong(name, value, "an object")),
        }
    }

    /// Refuses fields that are neither known nor unsupported, and unsupported ones that ask for something.
    pub(super) fn check(self, known: &[&[&str]], unsupported: &[Unsupported]) -> Result<Self, ApiError> {
        let names = || known.iter().flat_map(|names| names.iter().copied());
        for (name, value) in self.map {
            if names().any(|known| known == name) || value.is_null() {
                continue;
            }
            let Some((_, defaults)) = unsupported.iter().find(|(known, _)| known == name) else {
                let all: Vec<&str> = names().collect();
                let hint = nearest(name, all.iter().copied());
                return Err(
                    self.error(name, format!("is not known{hint} Known are {}", list(&all)).replace("? K", "? K"))
                );
            };
            let defaults: Vec<Value> = serde_json::from_str(defaults).unwrap_or_default();
            if !defaults.contains(value) {
                let allowed: Vec<String> = defaults.iter().map(Value::to_string).collect();
                let allowed = if allowed.is_empty() { "`null`".to_owned() } else { list(&allowed) };
                return Err(self.error(name, format!("is not supported with value `{}`, only {allowed}", short(value))));
            }
        }
        Ok(self)
    }

    /// A value that is there and not null.
    pub(super) fn get(self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn error(self, name: &str, problem: impl std::fmt::Display) -> ApiError {
        ApiError::field(&format!("{}{name}", self.place), problem)
    }

    fn wrong(self, name: &str, value: &Value, wanted: &str) -> ApiError {
        self.error(name, format!("is `{}`, it must be {wanted}", short(value)))
    }

    pub(super) fn integer(self, name: &str) -> Result<Option<u64>, ApiError> {
        self.get(name)
            .map(|value| {
                // Some clients write 5.0.
                let whole = value.as_f64().filter(|v| v.fract() == 0.0 && (0.0..=2f64.powi(53)).contains(v));
                let integer = value.as_u64().or_else(|| whole.map(|v| v as u64));
                integer.ok_or_else(|| self.wrong(name, value, "an integer, 0 or more"))
            })
            .transpose()
    }

    /// An integer from `low` to `high`.
    pub(super) fn integer_within(self, name: &str, low: u64, high: u64) -> Result<Option<u64>, ApiError> {
        match self.integer(name)? {
            Some(value) if !(low..=high).contains(&value) => {
                Err(self.error(name, format!("is {value}, allowed is {low} to {high}")))
            }
            value => Ok(value),
        }
    }

    pub(super) fn float(self, name: &str) -> Result<Option<f64>, ApiError> {
        self.get(name).map(|value| value.as_f64().ok_or_else(|| self.wrong(name, value, "a number"))).transpose()
    }

    pub(super) fn boolean(self, name: &str) -> Result<bool, ApiError> {
        let value = self.get(name).unwrap_or(&Value::Bool(false));
        value.as_bool().ok_or_else(|| self.wrong(name, value, "true or false"))
    }

    pub(super) fn text(self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.get(name).map(|value| value.as_str().ok_or_else(|| self.wrong(name, value, "a text"))).transpose()
    }

    /// A text, or a list of texts, at most `most`.
    pub(super) fn texts(self, name: &str, most: usize) -> Result<Vec<String>, ApiError> {
        let texts = match self.get(name) {
            None => Vec::new(),
            Some(Value::String(text)) => vec![text.clone()],
            Some(value) => serde_json::from_value::<Vec<String>>(value.clone())
                .map_err(|_| self.wrong(name, value, "a text or a list of texts"))?,
        };
        if texts.len() > most {
            return Err(self.error(name, format!("has {} texts, allowed are {most}", texts.len())));
        }
        Ok(texts)
    }

    /// Token ids.
    pub(super) fn ids(self, name: &str) -> Result<Option<Vec<u32>>, ApiError> {
        self.get(name)
            .map(|value| {
                serde_json::from_value(value.clone()).map_err(|_| self.wrong(name, value, "a list of token ids"))
            })
            .transpose()
    }
}

/// A value for a message, cut short.
pub(super) fn short(value: &Value) -> String {
    const MOST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Whether a value is a list.
pub(super) fn is_empty_list(value: &Value) -> bool {
    *value == json!([])
}
