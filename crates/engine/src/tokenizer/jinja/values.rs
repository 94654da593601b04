//! Values of Python: their types, what is in them, and how `str` and `repr` write them.

use std::fmt::Write as _;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Lists in lists, as far as they are written out.
const DEPTH: usize = 100;

/// A tuple of Python, which is a list that is written in parentheses.
#[derive(Debug)]
pub(super) struct Tuple(pub(super) Vec<Value>);

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }
}

/// What can be iterated over and no more: what filters such as `map` give, and the views of a dict.
#[derive(Debug)]
pub(super) struct Iterated {
    /// Python's name of the type: `generator`, `dict_items`, `dict_keys` or `dict_values`.
    pub(super) name: &'static str,
    pub(super) values: Vec<Value>,
}

impl Object for Iterated {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.values.clone())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        // Python does not know whether a generator gives anything.
        self.name == "generator" || !self.values.is_empty()
    }
}

pub(super) fn failed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

/// What Python calls the type of a value.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Bytes => "bytes",
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => "tuple",
        ValueKind::Seq | ValueKind::Iterable => {
            value.downcast_object_ref::<Iterated>().map_or("list", |found| found.name)
        }
        ValueKind::Map => "dict",
        _ => "object",
    }
}

/// What Python iterates over.
pub(super) fn items(value: &Value) -> Result<Box<dyn Iterator<Item = Value> + '_>, Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => Ok(Box::new(text.chars().map(|character| Value::from(character.to_string())))),
        (None, ValueKind::Undefined) => Ok(Box::new(std::iter::empty())),
        (None, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) => Ok(Box::new(value.try_iter()?)),
        _ => Err(failed(format!("'{}' object is not iterable", type_name(value)))),
    }
}

/// Python's `str.isspace` of one character.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Python's `str`.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => Ok(text.to_owned()),
        (ValueKind::Undefined, _) => Ok(String::new()),
        _ => repr(value),
    }
}

/// Python's `repr`.
pub(super) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write(value, &mut out, 0)?;
    Ok(out)
}

fn write(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(failed(format!("a value in more than {DEPTH} lists or maps cannot be written out")));
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::String => text(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let (name, tuple) = (type_name(value), type_name(value) == "tuple");
            let view = !matches!(name, "list" | "tuple");
            if view {
                out.push_str(name);
                out.push('(');
            }
            out.push(if tuple { '(' } else { '[' });
            let mut length = 0;
            for item in value.try_iter()? {
                out.push_str(if length > 0 { ", " } else { "" });
                write(&item, out, depth + 1)?;
                length += 1;
            }
            out.push_str(if tuple && length == 1 { "," } else { "" });
            out.push(if tuple { ')' } else { ']' });
            out.push_str(if view { ")" } else { "" });
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write(&key, out, depth + 1)?;
                out.push_str(": ");
                write(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _infallible = write!(out, "{value}");
        }
    }
    Ok(())
}

/// A float: its shortest digits, with an exponent below 1e-4 and from 1e16.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        let sign = if number < 0.0 { "-" } else { "" };
        return if number.is_nan() { "nan".into() } else { format!("{sign}inf") };
    }
    let digits = format!("{number:e}");
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
    match exponent.parse().unwrap_or(0) {
        -4..16 => format!("{number:?}"),
        exponent => format!("{mantissa}{}", exponent_text(exponent)),
    }
}

/// An exponent with its sign and at least two digits.
pub(super) fn exponent_text(exponent: i32) -> String {
    format!("e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
}

fn text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            character if character == quote => out.extend(['\\', quote]),
            ' '..='~' => out.push(character),
            character if is_printable(character) => out.push(character),
            character => {
                let _infallible = match u32::from(character) {
                    code @ 0..=0xff => write!(out, "\\x{code:02x}"),
                    code @ 0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Python's `str.isprintable`, which is the rule of `escape_debug` as well: neither of the categories C and Z, nor a
/// character that joins to the one before, which `escape_debug` escapes at the start of a text only.
fn is_printable(character: char) -> bool {
    let pair = String::from_iter(['a', character]);
    let mut escaped = pair.escape_debug().skip(1);
    escaped.next() == Some(character) && escaped.next().is_none()
}
