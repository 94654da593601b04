//! The text of a configuration with overrides, before it becomes typed.

use std::path::Path;
use std::sync::Arc;

use super::Config;
use super::decode::{Located, decode};
use super::error::{ConfigError, Origin, Place};
use super::node::Node;

/// YAML of which every value knows its place, and the overrides that were put into it.
#[derive(Debug, Clone)]
pub struct Document {
    origin: Origin,
    text: String,
    given: Node,
    sets: Vec<String>,
    /// `given` with the overrides.
    root: Node,
}

impl Document {
    /// Reads a YAML file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError {
            origin: Origin::File(path.to_owned()),
            place: Place::Whole,
            message: format!("cannot read the configuration: {error}"),
        })?;
        Self::from_yaml(&text, path)
    }

    /// Parses YAML text; `origin` is named in errors, and relative paths are taken from its folder.
    pub fn from_yaml(text: &str, origin: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::parse(text, Origin::File(origin.as_ref().to_owned()))
    }

    /// Parses YAML that the binary holds; `name` is the path of the file that it was made from.
    pub fn built_in(name: &'static str, text: &str) -> Result<Self, ConfigError> {
        Self::parse(text, Origin::BuiltIn(name))
    }

    fn parse(text: &str, origin: Origin) -> Result<Self, ConfigError> {
        match Node::parse(text) {
            Ok(root) => Ok(Self { origin, text: text.to_owned(), given: root.clone(), sets: Vec::new(), root }),
            Err(error) => {
                let found = syntax_error(&error);
                Err(ConfigError { origin, place: found.place, message: found.message })
            }
        }
    }

    /// Puts values over those of the text. Each is `KEY=VALUE`: a path of keys and indices of lists, joined by dots, and
    /// YAML.
    pub fn set(mut self, sets: &[String]) -> Result<Self, ConfigError> {
        for set in sets {
            let place = Place::Set(Arc::from(set.as_str()));
            let refuse = |message: String| ConfigError { origin: self.origin.clone(), place: place.clone(), message };
            let expected = "expected KEY=VALUE, such as models.large.emulated.latency_ms=27.9";
            let (path, value) = set.split_once('=').ok_or_else(|| refuse(expected.into()))?;
            if path.split('.').any(str::is_empty) {
                return Err(refuse(expected.into()));
            }
            let value = Node::parse_at(value, &place).map_err(|error| refuse(syntax_error(&error).message))?;
            self.root.put(path, value).map_err(refuse)?;
            self.sets.push(set.clone());
        }
        Ok(self)
    }

    /// Where the text comes from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The YAML: the text itself, or one with the overrides in it.
    pub fn text(&self) -> String {
        if self.sets.is_empty() {
            return self.text.clone();
        }
        serde_json::to_string_pretty(&self.root).expect("a tree with text as keys is JSON")
    }

    /// The place of the value at a path of keys, for an error about it.
    pub(crate) fn error_at(&self, problem: super::Problem) -> ConfigError {
        let place = self.root.place_of(&problem.path).clone();
        ConfigError { origin: self.origin.clone(), place, message: problem.message }
    }

    /// The typed configuration, or the key or override that is wrong.
    pub(super) fn config(&self) -> Result<Config, ConfigError> {
        self.decode().map_err(|found| {
            let place = self.guilty_override(&found.place).unwrap_or(found.place);
            ConfigError { origin: self.origin.clone(), place, message: found.message }
        })
    }

    fn decode(&self) -> Result<Config, Located> {
        let mut config: Config = decode(&self.root)?;
        config.resolve_paths(self.origin.path().parent().unwrap_or(Path::new("")));
        config.validate().map_err(|problem| Located {
            place: self.root.place_of(&problem.path).clone(),
            message: problem.message,
        })?;
        Ok(config)
    }

    /// The last override without which there is no mistake at this place of the text: it made a value of the text wrong.
    fn guilty_override(&self, place: &Place) -> Option<Place> {
        if matches!(place, Place::Set(_)) {
            return None;
        }
        let guilty = |skipped: &usize| {
            let mut sets = self.sets.clone();
            sets.remove(*skipped);
            let before = Self { root: self.given.clone(), sets: Vec::new(), ..self.clone() };
            let Ok(without) = before.set(&sets) else { return false };
            match without.decode() {
                Ok(_) => true,
                Err(other) => matches!(other.place, Place::Text { .. }) && other.place != *place,
            }
        };
        let skipped = (0..self.sets.len()).rev().find(guilty)?;
        Some(Place::Set(Arc::from(self.sets[skipped].as_str())))
    }
}

/// The YAML library's error, without its picture of the text.
fn syntax_error(error: &serde_saphyr::Error) -> Located {
    use serde_saphyr::Error;
    let error = error.without_snippet();
    let place = error.location().filter(|location| location.line() > 0);
    let place = place.map_or(Place::Whole, |at| Place::Text { line: at.line(), column: at.column() });
    let message = match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("key `{key}` is given twice"),
        Error::MultipleDocuments { .. } => "a second YAML document begins here; a configuration is one".into(),
        Error::NullIntoString { .. } => "a key is empty; names of keys and models are text".into(),
        Error::NonFiniteFloat { value, .. } => format!("`{value}` is not a finite number"),
        Error::RecursiveReferencesRequireWeakTypes { .. } => "an alias is inside of what it stands for".into(),
        other => {
            let message = other.to_string();
            let message = message.lines().next().unwrap_or_default();
            message.split(" at line ").next().unwrap_or_default().trim().to_owned()
        }
    };
    Located { place, message }
}
