//! Typed access to JSON of model files. Messages name the key, its value and what is allowed.

use serde_json::Value;

/// An object of a file.
pub(super) struct Object<'a> {
    /// The key that it is the value of, quoted; empty for a whole file.
    name: String,
    value: &'a Value,
}

impl<'a> Object<'a> {
    /// A whole file.
    pub(super) fn root(value: &'a Value) -> Self {
        Self { name: String::new(), value }
    }

    /// The key that it is the value of.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
    }

    /// A key's value, unless it is missing or `null`.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    fn place(&self, key: &str) -> String {
        if self.name.is_empty() { format!("key `{key}`") } else { format!("key `{key}` of {}", self.name) }
    }

    fn read<T>(&self, key: &str, allowed: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || format!("{} is `{}`, allowed is {allowed}", self.place(key), short(value));
        read(value).ok_or_else(wrong).map(Some)
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, String> {
        value.ok_or_else(|| format!("{} is missing", self.place(key)))
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<Self>, String> {
        let value = self.read(key, "an object", |value| value.is_object().then_some(value))?;
        Ok(value.map(|value| Self { name: format!("`{key}`"), value }))
    }

    pub(super) fn size(&self, key: &str) -> Result<Option<usize>, String> {
        self.read(key, "a whole number", |value| usize::try_from(value.as_u64()?).ok())
    }

    pub(super) fn required_size(&self, key: &str) -> Result<usize, String> {
        self.required(key, self.size(key)?)
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f32>, String> {
        self.read(key, "a number", |value| Some(value.as_f64()? as f32).filter(|number| number.is_finite()))
    }

    pub(super) fn required_number(&self, key: &str) -> Result<f32, String> {
        self.required(key, self.number(key)?)
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        self.read(key, "`true` or `false`", Value::as_bool)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        self.read(key, "a text", Value::as_str)
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, String> {
        self.read(key, "a list of texts", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// One id or a list of them.
    pub(super) fn token_ids(&self, key: &str) -> Result<Vec<u32>, String> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = self.read(key, "a token id or a list of them", |value| match value {
            Value::Array(items) => items.iter().map(id).collect(),
            value => id(value).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

/// A value for a message.
fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(60).chain("...".chars()).collect() }
}
