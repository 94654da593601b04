//! Python's attributes, items and methods of values.

use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, ValueKind, from_args};
use minijinja::{Error, State, Value};

use super::format::str_format;
use super::marks::{after_marks, strip};
use super::values::{Iterated, Tuple, failed, is_space, items, type_name};

const DICT: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

const DICT_VIEWS: [&str; 3] = ["dict_items", "dict_keys", "dict_values"];

/// A method that is not called, as in `schema.items`: true, and nothing else.
#[derive(Debug)]
struct Method(Value, String);

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        call(state, &self.0, &self.1, args)
    }
}

/// A map of Python, and not what minijinja keeps as a map besides.
fn is_dict(value: &Value) -> bool {
    let own = |object: &minijinja::value::DynObject| {
        let name = object.type_name();
        ["Namespace", "Loop", "Module", "Macro"].iter().any(|own| name.ends_with(own))
    };
    value.kind() == ValueKind::Map && !value.as_object().is_some_and(own)
}

fn method(object: &Value, name: &str) -> Option<Value> {
    let has = DICT.contains(&name) && is_dict(object);
    has.then(|| Value::from_object(Method(object.clone(), name.to_owned())))
}

/// `object.name`: a method, or an item.
pub(super) fn attribute(object: &Value, name: &str) -> Result<Value, Error> {
    match method(object, name) {
        Some(method) => Ok(method),
        None => object.get_attr(name),
    }
}

/// `object[key]`: an item, or a method.
pub(super) fn item(object: &Value, key: &Value) -> Result<Value, Error> {
    if let (Some(text), Some(at)) = (object.as_str(), key.as_i64()) {
        let found = match usize::try_from(at) {
            Ok(at) => text.chars().nth(at),
            Err(_) => usize::try_from(-(at + 1)).ok().and_then(|back| text.chars().nth_back(back)),
        };
        return Ok(found.map_or(Value::UNDEFINED, |character| Value::from(character.to_string())));
    }
    if object.downcast_object_ref::<Iterated>().is_some() {
        return Ok(Value::UNDEFINED);
    }
    let found = object.get_item(key)?;
    match key.as_str() {
        Some(name) if found.is_undefined() => Ok(method(object, name).unwrap_or(found)),
        _ => Ok(found),
    }
}

/// `object.name(args)`.
pub(super) fn call(state: &State<'_, '_>, object: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let unknown = || failed(format!("'{}' object has no method '{name}'", type_name(object)));
    match object.as_str() {
        Some(text) => string(text, name, args)?.ok_or_else(unknown),
        None if object.is_undefined() => Err(failed(format!("an undefined value has no method '{name}'"))),
        None if is_dict(object) => match dict(object, name, args)? {
            Some(value) => Ok(value),
            None => object.get_attr(name)?.call(state, args),
        },
        None if matches!(type_name(object), "list" | "tuple") => list(object, name, args)?.ok_or_else(unknown),
        None => object.call_method(state, name, args),
    }
}

fn dict(object: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let pairs = || -> Result<Vec<(Value, Value)>, Error> {
        object.try_iter()?.map(|key| Ok((key.clone(), object.get_item(&key)?))).collect()
    };
    Ok(Some(match name {
        "get" => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            let found = object.get_item(key)?;
            if found.is_undefined() { default.unwrap_or(Value::from(())) } else { found }
        }
        "items" | "keys" | "values" => {
            let () = from_args(args)?;
            let part = |(key, value): (Value, Value)| match name {
                "items" => Value::from_object(Tuple(vec![key, value])),
                "keys" => key,
                _ => value,
            };
            let values = pairs()?.into_iter().map(part).collect();
            let name = DICT_VIEWS.iter().find(|view| view.ends_with(name)).copied().unwrap_or("dict_items");
            Value::from_object(Iterated { name, values })
        }
        "copy" => {
            let () = from_args(args)?;
            object.clone()
        }
        name if DICT.contains(&name) => return Err(failed(format!("templates cannot change a dict with '{name}'"))),
        _ => return Ok(None),
    }))
}

fn list(object: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let (wanted,): (&Value,) = match name {
        "count" | "index" => from_args(args)?,
        "copy" if args.is_empty() => return Ok(Some(object.clone())),
        _ => return Ok(None),
    };
    if name == "count" {
        return Ok(Some(Value::from(object.try_iter()?.filter(|item| item == wanted).count())));
    }
    let at = object.try_iter()?.position(|item| item == *wanted);
    at.map(|at| Some(Value::from(at))).ok_or_else(|| failed("the item is not in the list"))
}

/// Python's `str.splitlines`.
pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let ends =
        |character: char| matches!(character, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends) {
        let length =
            if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        lines.push(&rest[..if keep { at + length } else { at }]);
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Python's `str.capitalize`.
pub(super) fn capitalize(text: &str) -> String {
    let (marks, text) = after_marks(text);
    let mut characters = text.chars();
    let first: String = characters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{marks}{first}{}", characters.as_str().to_lowercase())
}

/// Python's `str.title`: a capital after what is no letter.
fn title(text: &str) -> String {
    let (mut out, mut inside) = (String::new(), false);
    for character in text.chars() {
        if inside {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
        inside = character.is_lowercase() || character.is_uppercase();
    }
    out
}

/// The methods of texts.
fn string(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if let Some(value) = tested(text, name, args)? {
        return Ok(Some(value));
    }
    if let Some(value) = searched(text, name, args)? {
        return Ok(Some(value));
    }
    Ok(Some(match name {
        "upper" | "lower" | "casefold" | "title" | "capitalize" | "swapcase" => {
            let () = from_args(args)?;
            Value::from(match name {
                "upper" => text.to_uppercase(),
                "title" => title(text),
                "capitalize" => capitalize(text),
                "swapcase" => swapped(text),
                _ => text.to_lowercase(),
            })
        }
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(text, chars, name != "rstrip", name != "lstrip"))
        }
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            Value::from(match count.map(usize::try_from) {
                Some(Ok(count)) => text.replacen(old, new, count),
                _ => text.replace(old, new),
            })
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let cut = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            Value::from(cut.unwrap_or(text))
        }
        "zfill" | "center" | "ljust" | "rjust" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            Value::from(padded(text, name, width, fill)?)
        }
        "join" => {
            let (parts,): (&Value,) = from_args(args)?;
            let parts: Vec<Value> = items(parts)?.collect();
            let texts = parts.iter().map(|part| {
                part.as_str().ok_or_else(|| failed(format!("join: expected str instance, {} found", type_name(part))))
            });
            Value::from(texts.collect::<Result<Vec<_>, _>>()?.join(text))
        }
        "format" => {
            let (args, named): (Rest<Value>, Kwargs) = from_args(args)?;
            Value::from(str_format(text, &args, &named)?)
        }
        _ => return Ok(None),
    }))
}

fn swapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_uppercase() {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
    }
    out
}

fn padded(text: &str, name: &str, width: usize, fill: Option<&str>) -> Result<String, Error> {
    const WIDEST: usize = 1 << 16;
    let missing = width.saturating_sub(text.chars().count());
    if missing > WIDEST {
        return Err(failed(format!("{name}: the width {width} is more than {WIDEST}")));
    }
    let fill = if name == "zfill" { "0" } else { fill.unwrap_or(" ") };
    if fill.chars().count() != 1 {
        return Err(failed(format!("{name}: the fill must be one character")));
    }
    let before = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let (before, after) = (fill.repeat(before), fill.repeat(missing - before));
    let sign = text.len() - text.strip_prefix(['+', '-']).filter(|_| name == "zfill").unwrap_or(text).len();
    Ok(format!("{}{before}{}{after}", &text[..sign], &text[sign..]))
}

/// Methods that say something about the characters.
fn tested(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    let cased = |is: fn(char) -> bool, not: fn(char) -> bool| text.chars().any(is) && !text.chars().any(not);
    let value = match name {
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isspace" => all(is_space),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isascii" => text.is_ascii(),
        "istitle" => text.chars().any(char::is_uppercase) && title(text) == text,
        _ => return Ok(None),
    };
    let () = from_args(args)?;
    Ok(Some(Value::from(value)))
}

/// Methods that look for a part of the text.
fn searched(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "startswith" | "endswith" => {
            let (part,): (&Value,) = from_args(args)?;
            let is = |part: &str| match name {
                "startswith" => text.starts_with(part) || after_marks(text).1.starts_with(part),
                _ => text.ends_with(part),
            };
            match (part.as_str(), type_name(part)) {
                (Some(part), _) => Value::from(is(part)),
                (None, "tuple") => Value::from(part.try_iter()?.any(|part| part.as_str().is_some_and(is))),
                (None, other) => {
                    return Err(failed(format!("{name}: the argument must be str or a tuple of str, not {other}")));
                }
            }
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let at = if name.starts_with('r') { text.rfind(part) } else { text.find(part) };
            match at {
                Some(at) => Value::from(text[..at].chars().count()),
                None if name.ends_with("find") => Value::from(-1),
                None => return Err(failed("substring not found")),
            }
        }
        "count" => {
            let (part,): (&str,) = from_args(args)?;
            Value::from(text.matches(part).count())
        }
        "partition" | "rpartition" => {
            let (between,): (&str,) = from_args(args)?;
            let first = name == "partition";
            let parts = match if first { text.split_once(between) } else { text.rsplit_once(between) } {
                Some((before, after)) => [before, between, after],
                None if first => [text, "", ""],
                None => ["", "", text],
            };
            Value::from_object(Tuple(parts.map(Value::from).to_vec()))
        }
        "split" | "rsplit" => {
            let (between, most, named): (Option<&Value>, Option<i64>, Kwargs) = from_args(args)?;
            let (named_between, named_most): (Option<Value>, Option<i64>) = (named.get("sep")?, named.get("maxsplit")?);
            named.assert_all_used()?;
            let between = between.cloned().or(named_between).unwrap_or(Value::from(()));
            let most = most.or(named_most).and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            let parts = match between.as_str() {
                Some("") => return Err(failed(format!("{name}: empty separator"))),
                Some(between) => split_at(text, between, most, name == "rsplit"),
                None if between.is_none() => split_words(text, most, name == "rsplit"),
                None => return Err(failed(format!("{name}: must be str or None, not {}", type_name(&between)))),
            };
            parts.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let (keep, named): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(named.get("keepends")?).unwrap_or(false);
            named.assert_all_used()?;
            lines(text, keep).into_iter().map(Value::from).collect()
        }
        _ => return Ok(None),
    }))
}

fn split_at<'t>(text: &'t str, between: &str, most: usize, right: bool) -> Vec<&'t str> {
    let most = most.saturating_add(1);
    if right {
        let mut parts: Vec<&str> = text.rsplitn(most, between).collect();
        parts.reverse();
        return parts;
    }
    text.splitn(most, between).collect()
}

fn trimmed(text: &str, right: bool) -> &str {
    if right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) }
}

fn split_words(text: &str, most: usize, right: bool) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), trimmed(text, right));
    while !rest.is_empty() {
        let found = if right { rest.rfind(is_space) } else { rest.find(is_space) };
        let (Some(at), true) = (found, parts.len() < most) else {
            parts.push(rest);
            break;
        };
        let next = at + rest[at..].chars().next().map_or(1, char::len_utf8);
        let (part, others) = if right { (&rest[next..], &rest[..at]) } else { (&rest[..at], &rest[next..]) };
        parts.push(part);
        rest = trimmed(others, right);
    }
    if right {
        parts.reverse();
    }
    parts
}
