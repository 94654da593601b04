//! Jinja's filters and tests where minijinja's differ.

use std::borrow::Cow;
use std::cmp::Ordering;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, State, Value, filters};

use super::format::{percent, truncated};
use super::json::tojson;
use super::marks::strip;
use super::methods::{attribute, capitalize, item, lines};
use super::operators::{add, order};
use super::values::{Iterated, Tuple, failed, is_space, items, repr, str, type_name};

pub(super) fn add_to(environment: &mut Environment<'_>) {
    // What Jinja does not have.
    for name in ["split", "lines", "bool", "chain", "zip"] {
        environment.remove_filter(name);
    }
    for name in ["startingwith", "endingwith", "int", "safe"] {
        environment.remove_test(name);
    }
    environment.remove_global("debug");
    environment.add_filter("tojson", tojson);
    texts(environment);
    lists(environment);
    tests(environment);
}

fn texts(environment: &mut Environment<'_>) {
    environment.add_filter("string", |value: &Value| str(value));
    environment.add_filter("safe", |value: &Value| str(value));
    for name in ["e", "escape", "forceescape"] {
        environment.add_filter(name, |value: &Value| -> Result<String, Error> {
            let text = str(value)?.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            Ok(text.replace('\'', "&#39;").replace('"', "&#34;"))
        });
    }
    environment.add_filter("trim", |value: &Value, chars: Option<&str>| -> Result<String, Error> {
        Ok(strip(&str(value)?, chars, true, true))
    });
    environment.add_filter("upper", |value: &Value| -> Result<String, Error> { Ok(str(value)?.to_uppercase()) });
    environment.add_filter("lower", |value: &Value| -> Result<String, Error> { Ok(str(value)?.to_lowercase()) });
    environment.add_filter("capitalize", |value: &Value| -> Result<String, Error> { Ok(capitalize(&str(value)?)) });
    environment.add_filter("title", |value: &Value| -> Result<String, Error> { Ok(titled(&str(value)?)) });
    environment.add_filter("replace", |value: &Value, old: &Value, new: &Value, count: Option<i64>| {
        let (value, old, new) = (str(value)?, str(old)?, str(new)?);
        Ok::<_, Error>(match count.map(usize::try_from) {
            Some(Ok(count)) => value.replacen(&old, &new, count),
            _ => value.replace(&old, &new),
        })
    });
    environment.add_filter("format", |value: &Value, args: Rest<Value>, named: Kwargs| {
        let given = match named.args().next() {
            Some(_) if args.is_empty() => named
                .args()
                .map(|name| Ok((name, named.get::<Value>(name)?)))
                .collect::<Result<Vec<_>, Error>>()?
                .into_iter()
                .collect(),
            Some(_) => return Err(failed("format: values with and without names")),
            None => Value::from_object(Tuple(args.0)),
        };
        percent(&str(value)?, &given)
    });
    environment.add_filter("indent", indent);
    environment.add_filter("pprint", |value: &Value| repr(value));
    environment.add_filter("int", int);
    environment.add_filter("float", |value: &Value, default: Option<f64>| {
        let read = match value.as_str() {
            Some(text) => parsed(text),
            None => number(value),
        };
        read.unwrap_or(default.unwrap_or(0.0))
    });
    environment.add_filter("round", round);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
}

/// The filter `title`, which is another one than the method: capitals after spaces, dashes and brackets.
fn titled(text: &str) -> String {
    let (mut out, mut start) = (String::new(), true);
    for character in text.chars() {
        if start {
            out.extend(character.to_uppercase());
        } else {
            out.extend(character.to_lowercase());
        }
        start = character.is_whitespace() || "-({[<".contains(character);
    }
    out
}

fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    const WIDEST: usize = 1 << 10;
    let width = width.or(named.get("width")?).unwrap_or(Value::from(4));
    let first = first.or(named.get("first")?).unwrap_or(false);
    let blank = blank.or(named.get("blank")?).unwrap_or(false);
    named.assert_all_used()?;
    let space = match (width.as_str(), width.as_usize()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(width)) if width <= WIDEST => " ".repeat(width),
        _ => return Err(failed(format!("indent: the width is `{width}`, it must be a text or at most {WIDEST}"))),
    };
    let text = str(value)? + "\n";
    let mut out = String::new();
    for (index, line) in lines(&text, false).into_iter().enumerate() {
        out.push_str(if index > 0 { "\n" } else { "" });
        let indented = if index > 0 { blank || !line.is_empty() } else { first };
        out.push_str(if indented { &space } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

fn number(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// Python's `float(text)`.
fn parsed(text: &str) -> Option<f64> {
    text.trim_matches(is_space).parse().ok()
}

fn int(value: &Value, default: Option<i64>, base: Option<u32>) -> Result<Value, Error> {
    let default = Value::from(default.unwrap_or(0));
    if value.is_integer() {
        return Ok(value.clone());
    }
    let read = match value.as_str() {
        None => number(value),
        Some(text) => {
            let text = text.trim_matches(is_space);
            let base = base.unwrap_or(10);
            if (2..=36).contains(&base)
                && let Ok(number) = i64::from_str_radix(text, base)
            {
                return Ok(Value::from(number));
            }
            parsed(text)
        }
    };
    Ok(read.and_then(|number| truncated(number).ok()).map_or(default, Value::from))
}

fn round(value: &Value, precision: Option<usize>, method: Option<&str>, named: Kwargs) -> Result<Value, Error> {
    const MOST: usize = 100;
    let precision = precision.or(named.get("precision")?).unwrap_or(0);
    let method: &str = method.or(named.get("method")?).unwrap_or("common");
    named.assert_all_used()?;
    let number = number(value).ok_or_else(|| failed(format!("round: {} is no number", type_name(value))))?;
    if precision > MOST {
        return Err(failed(format!("round: the precision {precision} is more than {MOST}")));
    }
    let power = 10f64.powi(i32::try_from(precision).unwrap_or(0));
    Ok(match method {
        "common" if value.is_integer() => value.clone(),
        "common" => Value::from(format!("{number:.precision$}").parse::<f64>().unwrap_or(number)),
        "ceil" => Value::from((number * power).ceil() / power),
        "floor" => Value::from((number * power).floor() / power),
        other => return Err(failed(format!("round: the method is `{other}`, it must be common, ceil or floor"))),
    })
}

fn default(value: &Value, default: Option<Value>, boolean: Option<bool>, named: Kwargs) -> Result<Value, Error> {
    let default = default.or(named.get("default_value")?).unwrap_or(Value::from(""));
    let boolean = boolean.or(named.get("boolean")?).unwrap_or(false);
    named.assert_all_used()?;
    Ok(if value.is_undefined() || (boolean && !value.is_true()) { default } else { value.clone() })
}

fn collected(value: &Value) -> Result<Value, Error> {
    Ok(Value::from(items(value)?.collect::<Vec<_>>()))
}

fn generator(values: Vec<Value>) -> Value {
    Value::from_object(Iterated { name: "generator", values })
}

/// What Python's `map` and `select` take: anything that is false counts as an empty list.
fn given(value: &Value) -> Result<Value, Error> {
    if value.is_true() { collected(value) } else { Ok(Value::from(Vec::<Value>::new())) }
}

fn lists(environment: &mut Environment<'_>) {
    environment.add_filter("join", join);
    for name in ["length", "count"] {
        environment.add_filter(name, length);
    }
    environment.add_filter("first", |value: &Value| Ok::<_, Error>(items(value)?.next().unwrap_or(Value::UNDEFINED)));
    environment.add_filter("last", |value: &Value| match type_name(value) {
        "generator" => Err(failed("'generator' object is not reversible")),
        _ => Ok(items(value)?.last().unwrap_or(Value::UNDEFINED)),
    });
    environment.add_filter("list", collected);
    environment.add_filter("reverse", |value: &Value| -> Result<Value, Error> {
        let mut reversed: Vec<Value> = items(value)?.collect();
        reversed.reverse();
        Ok(match value.as_str() {
            Some(text) => Value::from(text.chars().rev().collect::<String>()),
            None => generator(reversed),
        })
    });
    environment.add_filter("items", |value: &Value| match type_name(value) {
        "dict" => Ok(generator(pairs(value)?)),
        "Undefined" => Ok(generator(Vec::new())),
        _ => Err(failed("Can only get item pairs from a mapping.")),
    });
    environment.add_filter("sum", |value: &Value, attribute: Option<Value>, start: Option<Value>, named: Kwargs| {
        let attribute = attribute.or(named.get("attribute")?).filter(|attribute| !attribute.is_none());
        let start = start.or(named.get("start")?).unwrap_or(Value::from(0));
        named.assert_all_used()?;
        items(value)?.try_fold(start, |sum, item| match &attribute {
            Some(attribute) => add(&sum, &path(&item, attribute)?),
            None => add(&sum, &item),
        })
    });
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("sort", sort);
    environment.add_filter("min", |value: &Value, named: Kwargs| extreme(value, &named, Ordering::Less));
    environment.add_filter("max", |value: &Value, named: Kwargs| extreme(value, &named, Ordering::Greater));
    environment.add_filter(
        "select",
        |state: &State<'_, '_>, value: &Value, test: Option<Cow<'_, str>>, args: Rest<Value>| {
            filters::select(state, given(value)?, test, args).map(generator)
        },
    );
    environment.add_filter(
        "reject",
        |state: &State<'_, '_>, value: &Value, test: Option<Cow<'_, str>>, args: Rest<Value>| {
            filters::reject(state, given(value)?, test, args).map(generator)
        },
    );
    environment.add_filter(
        "selectattr",
        |state: &State<'_, '_>, value: &Value, name: Cow<'_, str>, test: Option<Cow<'_, str>>, args: Rest<Value>| {
            filters::selectattr(state, given(value)?, name, test, args).map(generator)
        },
    );
    environment.add_filter(
        "rejectattr",
        |state: &State<'_, '_>, value: &Value, name: Cow<'_, str>, test: Option<Cow<'_, str>>, args: Rest<Value>| {
            filters::rejectattr(state, given(value)?, name, test, args).map(generator)
        },
    );
    environment.add_filter("map", |state: &State<'_, '_>, value: &Value, args: Rest<Value>| {
        filters::map(state, given(value)?, args).map(generator)
    });
}

fn pairs(value: &Value) -> Result<Vec<Value>, Error> {
    let pair = |key: Value| {
        let found = value.get_item(&key)?;
        Ok(Value::from_object(Tuple(vec![key, found])))
    };
    value.try_iter()?.map(pair).collect()
}

fn length(value: &Value) -> Result<usize, Error> {
    match type_name(value) {
        "NoneType" | "bool" | "int" | "float" | "generator" | "object" => {
            Err(failed(format!("object of type '{}' has no len()", type_name(value))))
        }
        _ => Ok(items(value)?.count()),
    }
}

/// An attribute as filters name it: names and numbers with dots between.
fn path(value: &Value, path: &Value) -> Result<Value, Error> {
    let Some(names) = path.as_str() else { return item(value, path) };
    names.split('.').try_fold(value.clone(), |value, name| match name.parse::<usize>() {
        Ok(index) => item(&value, &Value::from(index)),
        Err(_) => attribute(&value, name),
    })
}

fn join(value: &Value, between: Option<&Value>, attribute: Option<Value>, named: Kwargs) -> Result<String, Error> {
    let between = between.cloned().or(named.get("d")?).unwrap_or(Value::from(""));
    let attribute = attribute.or(named.get("attribute")?).filter(|attribute| !attribute.is_none());
    named.assert_all_used()?;
    let texts = items(value)?.map(|item| match &attribute {
        Some(attribute) => str(&path(&item, attribute)?),
        None => str(&item),
    });
    Ok(texts.collect::<Result<Vec<_>, Error>>()?.join(&str(&between)?))
}

/// Texts without the difference of capitals, unless it counts.
fn folded(value: &Value, case_sensitive: bool) -> Value {
    match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value.clone(),
    }
}

/// Sorts stably by keys, or says which ones cannot be compared.
fn sorted(mut entries: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<Value>, Error> {
    let mut error = None;
    entries.sort_by(|(a, _), (b, _)| match order("<", a, b) {
        Ok(order) if reverse => order.unwrap_or(Ordering::Equal).reverse(),
        Ok(order) => order.unwrap_or(Ordering::Equal),
        Err(why) => {
            error.get_or_insert(why);
            Ordering::Equal
        }
    });
    error.map_or_else(|| Ok(entries.into_iter().map(|(_, value)| value).collect()), Err)
}

fn dictsort(
    value: &Value,
    case: Option<bool>,
    by: Option<&str>,
    reverse: Option<bool>,
    named: Kwargs,
) -> Result<Value, Error> {
    let case = case.or(named.get("case_sensitive")?).unwrap_or(false);
    let by: &str = by.or(named.get("by")?).unwrap_or("key");
    let reverse = reverse.or(named.get("reverse")?).unwrap_or(false);
    named.assert_all_used()?;
    let at = match by {
        "key" => 0,
        "value" => 1,
        _ => return Err(failed("You can only sort by either \"key\" or \"value\"")),
    };
    if type_name(value) != "dict" {
        return Err(failed(format!("dictsort: '{}' object has no method 'items'", type_name(value))));
    }
    let entries = pairs(value)?.into_iter().map(|pair| Ok((folded(&pair.get_item(&Value::from(at))?, case), pair)));
    Ok(Value::from(sorted(entries.collect::<Result<_, Error>>()?, reverse)?))
}

fn sort(
    value: &Value,
    reverse: Option<bool>,
    case: Option<bool>,
    attribute: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let reverse = reverse.or(named.get("reverse")?).unwrap_or(false);
    let case = case.or(named.get("case_sensitive")?).unwrap_or(false);
    let attribute = attribute.or(named.get("attribute")?).filter(|attribute| !attribute.is_none());
    named.assert_all_used()?;
    Ok(Value::from(sorted(keyed(value, attribute.as_ref(), case)?, reverse)?))
}

/// Items with what they are compared by.
fn keyed(value: &Value, attribute: Option<&Value>, case: bool) -> Result<Vec<(Value, Value)>, Error> {
    let Some(attribute) = attribute else {
        return Ok(items(value)?.map(|item| (folded(&item, case), item)).collect());
    };
    let names: Vec<Value> = match attribute.as_str() {
        Some(text) => text.split(',').map(Value::from).collect(),
        None => vec![attribute.clone()],
    };
    let key =
        |item: &Value| names.iter().map(|name| Ok(folded(&path(item, name)?, case))).collect::<Result<Vec<_>, Error>>();
    items(value)?.map(|item| Ok((Value::from(key(&item)?), item))).collect()
}

fn extreme(value: &Value, named: &Kwargs, wanted: Ordering) -> Result<Value, Error> {
    let case = named.get::<Option<bool>>("case_sensitive")?.unwrap_or(false);
    let attribute: Option<Value> = named.get("attribute")?;
    named.assert_all_used()?;
    let mut best: Option<(Value, Value)> = None;
    for (key, item) in keyed(value, attribute.as_ref(), case)? {
        let better = match &best {
            Some((found, _)) => order("<", &key, found)? == Some(wanted),
            None => true,
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

fn tests(environment: &mut Environment<'_>) {
    let sequence = |value: &Value| matches!(type_name(value), "str" | "list" | "tuple" | "dict" | "Undefined");
    environment.add_test("sequence", sequence);
    environment.add_test("iterable", |value: &Value| items(value).is_ok());
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("callable", |value: &Value| type_name(value) == "object" || value.is_undefined());
    environment.add_test("escaped", |_: &Value| false);
    environment.add_test("upper", |value: &Value| -> Result<bool, Error> {
        let text = str(value)?;
        Ok(text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase))
    });
    environment.add_test("lower", |value: &Value| -> Result<bool, Error> {
        let text = str(value)?;
        Ok(text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase))
    });
    for names in [["lt", "lessthan", "<"], ["le", "<=", "<="], ["gt", "greaterthan", ">"], ["ge", ">=", ">="]] {
        for name in names {
            environment.add_test(name, move |a: &Value, b: &Value| -> Result<bool, Error> {
                let found = order(names[2], a, b)?;
                Ok(found.is_some_and(|found| match names[2] {
                    "<" => found.is_lt(),
                    "<=" => found.is_le(),
                    ">" => found.is_gt(),
                    _ => found.is_ge(),
                }))
            });
        }
    }
}
