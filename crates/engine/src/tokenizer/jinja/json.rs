//! The filter `tojson`, which Hugging Face replaces with Python's `json.dumps`: nothing is escaped for HTML.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

use super::values::{failed, float, type_name};

/// Lists in lists, as far as they are written out.
const DEPTH: usize = 100;

/// `json.dumps` with its arguments `ensure_ascii`, `indent`, `separators` and `sort_keys`, in Hugging Face's order.
pub(super) fn tojson(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let mut arguments = positional.0.into_iter();
    let mut argument = |name: &str| -> Result<Value, Error> {
        let named: Option<Value> = named.get(name)?;
        Ok(arguments.next().or(named).unwrap_or(Value::from(())))
    };
    let ascii = argument("ensure_ascii")?.is_true();
    let indent = argument("indent")?;
    let separators = argument("separators")?;
    let sorted = argument("sort_keys")?.is_true();
    named.assert_all_used()?;
    let indent = match (indent.as_str(), indent.as_i64()) {
        _ if indent.is_none() => None,
        (Some(text), _) => Some(text.to_owned()),
        (None, Some(width)) => Some(" ".repeat(usize::try_from(width.clamp(0, 64)).unwrap_or(0))),
        _ => return Err(failed(format!("tojson: `indent` is `{indent}`, it must be a number or a text"))),
    };
    let mut usual = [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned);
    if !separators.is_none() {
        let given: Vec<Value> = separators.try_iter()?.collect();
        let [Some(item), Some(key)] = &given.iter().map(Value::as_str).collect::<Vec<_>>()[..] else {
            return Err(failed(format!("tojson: `separators` is `{separators}`, it must be two texts")));
        };
        usual = [(*item).to_owned(), (*key).to_owned()];
    }
    let [item, key] = usual;
    let mut writer = Writer { out: String::new(), ascii, indent, item, key, sorted };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

struct Writer {
    out: String,
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sorted: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH {
            return Err(failed(format!("tojson: a value in more than {DEPTH} lists or maps")));
        }
        match value.kind() {
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable if matches!(type_name(value), "list" | "tuple") => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.entries("[]", &items, depth, |writer, item| writer.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let keys = value.try_iter()?.map(|key| Ok((scalar_key(&key)?, key)));
                let mut keys: Vec<(String, Value)> = keys.collect::<Result<_, Error>>()?;
                if self.sorted {
                    keys.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.entries("{}", &keys, depth, |writer, (name, key)| {
                    writer.text(name);
                    let between = writer.key.clone();
                    writer.out.push_str(&between);
                    writer.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            _ => {
                let text = scalar(value)
                    .ok_or_else(|| failed(format!("tojson: {} is not JSON serializable", type_name(value))))?;
                self.out.push_str(&text);
            }
        }
        Ok(())
    }

    fn entries<T>(
        &mut self,
        brackets: &str,
        entries: &[T],
        depth: usize,
        mut each: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (open, close) = brackets.split_at(1);
        self.out.push_str(open);
        for (index, entry) in entries.iter().enumerate() {
            if index > 0 {
                let between = self.item.clone();
                self.out.push_str(&between);
            }
            self.line(depth + 1);
            each(self, entry)?;
        }
        if !entries.is_empty() {
            self.line(depth);
        }
        self.out.push_str(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                ' '..='~' => self.out.push(character),
                character if self.ascii || character < ' ' => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let _infallible = write!(self.out, "\\u{unit:04x}");
                    }
                }
                character => self.out.push(character),
            }
        }
        self.out.push('"');
    }
}

/// What is neither a text nor a container.
fn scalar(value: &Value) -> Option<String> {
    Some(match value.kind() {
        ValueKind::None => "null".into(),
        ValueKind::Bool => value.is_true().to_string(),
        ValueKind::Number if value.is_integer() => value.to_string(),
        ValueKind::Number => match f64::try_from(value.clone()).ok()? {
            number if number.is_nan() => "NaN".into(),
            number if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
            number => float(number),
        },
        _ => return None,
    })
}

fn scalar_key(key: &Value) -> Result<String, Error> {
    match key.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => scalar(key).ok_or_else(|| failed(format!("tojson: a name of a field is {}", type_name(key)))),
    }
}
