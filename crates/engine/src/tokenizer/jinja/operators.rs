//! Python's operators.

use std::cmp::Ordering;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::format::percent;
use super::methods;
use super::values::{Tuple, failed, items, str, type_name};

pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment
        .add_filter("py_concat", |a: &Value, b: &Value| -> Result<String, Error> { Ok(str(a)? + str(b)?.as_str()) });
    environment.add_filter("py_attr", |object: &Value, name: &str| methods::attribute(object, name));
    environment.add_filter("py_item", |object: &Value, key: &Value| methods::item(object, key));
    environment.add_filter("py_call", |state: &State<'_, '_>, object: &Value, name: &str, args: Rest<Value>| {
        methods::call(state, object, name, &args)
    });
    environment.add_filter("py_slice", slice);
    environment.add_filter("py_iter", |value: &Value| items(value).map(|_| iterated(value)));
    environment.add_filter("py_tuple", |value: &Value| -> Result<Value, Error> {
        Ok(Value::from_object(Tuple(value.try_iter()?.collect())))
    });
    environment.add_filter("py_in", |item: &Value, container: &Value| contains(container, item));
    environment
        .add_filter("py_lt", |a: &Value, b: &Value| Ok::<_, Error>(order("<", a, b)?.is_some_and(Ordering::is_lt)));
    environment
        .add_filter("py_le", |a: &Value, b: &Value| Ok::<_, Error>(order("<=", a, b)?.is_some_and(Ordering::is_le)));
    environment
        .add_filter("py_gt", |a: &Value, b: &Value| Ok::<_, Error>(order(">", a, b)?.is_some_and(Ordering::is_gt)));
    environment
        .add_filter("py_ge", |a: &Value, b: &Value| Ok::<_, Error>(order(">=", a, b)?.is_some_and(Ordering::is_ge)));
    environment.add_filter("py_mul", multiply);
    environment.add_filter("py_div", |a: &Value, b: &Value| divide("/", a, b));
    environment.add_filter("py_floordiv", |a: &Value, b: &Value| divide("//", a, b));
    environment.add_filter("py_mod", |a: &Value, b: &Value| match a.as_str() {
        Some(text) => percent(text, b).map(Value::from),
        None => divide("%", a, b),
    });
    environment.add_filter("py_pow", power);
}

/// A number as Python's arithmetic takes it.
#[derive(Clone, Copy)]
enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    fn of(value: &Value) -> Option<Self> {
        match value.kind() {
            ValueKind::Bool => Some(Self::Int(i128::from(value.is_true()))),
            ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Self::Int),
            ValueKind::Number => f64::try_from(value.clone()).ok().map(Self::Float),
            _ => None,
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Int(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    failed(format!("unsupported operand types for {operator}: '{}' and '{}'", type_name(a), type_name(b)))
}

/// An integer as small as minijinja keeps it.
fn integer(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

fn numbers(operator: &str, a: &Value, b: &Value) -> Result<(Number, Number), Error> {
    Number::of(a).zip(Number::of(b)).ok_or_else(|| unsupported(operator, a, b))
}

/// The `+` of the filter `sum`; templates have minijinja's own.
pub(super) fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if type_name(a) == "list" && type_name(b) == "list" {
        return Ok(Value::from(a.try_iter()?.chain(b.try_iter()?).collect::<Vec<_>>()));
    }
    match numbers("+", a, b)? {
        (Number::Int(x), Number::Int(y)) => x.checked_add(y).map(integer).ok_or_else(|| failed("a sum is too large")),
        (x, y) => Ok(Value::from(x.float() + y.float())),
    }
}

fn multiply(a: &Value, b: &Value) -> Result<Value, Error> {
    const LONGEST: usize = 1 << 24;
    let (sequence, times) = match (Number::of(a), Number::of(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) => {
            return x.checked_mul(y).map(integer).ok_or_else(|| failed("a product is too large"));
        }
        (Some(x), Some(y)) => return Ok(Value::from(x.float() * y.float())),
        (None, Some(Number::Int(times))) => (a, times),
        (Some(Number::Int(times)), None) => (b, times),
        _ => return Err(unsupported("*", a, b)),
    };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let repeated = |length: usize| match length.saturating_mul(times) {
        0..=LONGEST => Ok(()),
        _ => Err(failed(format!("a product is longer than {LONGEST}"))),
    };
    match sequence.as_str() {
        Some(text) => {
            repeated(text.len())?;
            Ok(Value::from(text.repeat(times)))
        }
        None if matches!(type_name(sequence), "list" | "tuple") => {
            let items: Vec<Value> = sequence.try_iter()?.collect();
            repeated(items.len())?;
            Ok(Value::from(std::iter::repeat_n(items, times).flatten().collect::<Vec<_>>()))
        }
        None => Err(unsupported("*", a, b)),
    }
}

fn divide(operator: &str, a: &Value, b: &Value) -> Result<Value, Error> {
    let (x, y) = numbers(operator, a, b)?;
    if y.float() == 0.0 {
        return Err(failed("division by zero"));
    }
    let too_large = || failed("a quotient is too large");
    Ok(match (operator, x, y) {
        ("/", x, y) => Value::from(x.float() / y.float()),
        ("//", Number::Int(x), Number::Int(y)) => {
            let (quotient, rest) = (x.checked_div(y).ok_or_else(too_large)?, x.checked_rem(y).ok_or_else(too_large)?);
            integer(quotient - i128::from(rest != 0 && (rest < 0) != (y < 0)))
        }
        ("//", x, y) => Value::from((x.float() / y.float()).floor()),
        (_, Number::Int(x), Number::Int(y)) => {
            let rest = x.checked_rem(y).ok_or_else(too_large)?;
            integer(if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest })
        }
        (_, x, y) => {
            let (rest, y) = (x.float() % y.float(), y.float());
            Value::from(if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest })
        }
    })
}

fn power(a: &Value, b: &Value) -> Result<Value, Error> {
    match numbers("**", a, b)? {
        (Number::Int(x), Number::Int(y)) if y >= 0 => {
            let power = u32::try_from(y).ok().and_then(|y| x.checked_pow(y));
            power.map(integer).ok_or_else(|| failed("a power is too large"))
        }
        (x, y) => Ok(Value::from(x.float().powf(y.float()))),
    }
}

/// How two values compare, or nothing for NaN.
pub(super) fn order(operator: &str, a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    if let (Some(x), Some(y)) = (Number::of(a), Number::of(b)) {
        return Ok(match (x, y) {
            (Number::Int(x), Number::Int(y)) => Some(x.cmp(&y)),
            (x, y) => x.float().partial_cmp(&y.float()),
        });
    }
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        return Ok(Some(x.cmp(y)));
    }
    if matches!(type_name(a), "list" | "tuple") && type_name(a) == type_name(b) {
        let (mut x, mut y) = (a.try_iter()?, b.try_iter()?);
        loop {
            return match (x.next(), y.next()) {
                (Some(x), Some(y)) if x == y => continue,
                (Some(x), Some(y)) => order(operator, &x, &y),
                (x, y) => Ok(Some(x.is_some().cmp(&y.is_some()))),
            };
        }
    }
    Err(unsupported(operator, a, b))
}

fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    match (container.as_str(), container.kind()) {
        (Some(text), _) => match item.as_str() {
            Some(part) => Ok(text.contains(part)),
            None => Err(failed(format!("'in <string>' requires a string, not {}", type_name(item)))),
        },
        (None, ValueKind::Map) => match item.kind() {
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map if type_name(item) != "tuple" => {
                Err(failed(format!("unhashable type: '{}'", type_name(item))))
            }
            _ => Ok(!container.get_item(item)?.is_undefined()),
        },
        _ => Ok(items(container)?.any(|found| found == *item)),
    }
}

/// The same as minijinja iterates over it.
fn iterated(value: &Value) -> Value {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => text.chars().map(|character| Value::from(character.to_string())).collect(),
        (None, ValueKind::Undefined) => Value::from(Vec::<Value>::new()),
        _ => value.clone(),
    }
}

fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let text = value.as_str().map(|text| text.chars().collect::<Vec<char>>());
    let list = match type_name(value) {
        "str" => None,
        "list" | "tuple" => Some(value.try_iter()?.collect::<Vec<Value>>()),
        other => return Err(failed(format!("'{other}' object has no slices"))),
    };
    let length = text.as_ref().map(Vec::len).or(list.as_ref().map(Vec::len)).unwrap_or(0);
    let chosen = indices(length, start, stop, step)?;
    match (text, list) {
        (Some(text), _) => Ok(Value::from(chosen.map(|index| text[index]).collect::<String>())),
        (None, list) => {
            let list = list.unwrap_or_default();
            let chosen: Vec<Value> = chosen.map(|index| list[index].clone()).collect();
            Ok(if type_name(value) == "tuple" { Value::from_object(Tuple(chosen)) } else { Value::from(chosen) })
        }
    }
}

/// The indices of Python's `slice.indices`, all of them below `length`.
fn indices(
    length: usize,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<impl Iterator<Item = usize> + use<>, Error> {
    let number = |value: &Value| match Number::of(value) {
        _ if value.is_none() => Ok(None),
        Some(Number::Int(number)) => {
            Ok(Some(i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })))
        }
        _ => Err(failed(format!("slice indices must be integers or None, not '{}'", type_name(value)))),
    };
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let step = number(step)?.unwrap_or(1);
    if step == 0 {
        return Err(failed("slice step cannot be zero"));
    }
    let (lowest, highest) = if step < 0 { (-1, length - 1) } else { (0, length) };
    let bound = |given: Option<i64>, usual: i64| match given {
        None => usual,
        Some(given) if given < 0 => given.saturating_add(length).max(lowest),
        Some(given) => given.min(highest),
    };
    let (first, last) = if step < 0 { (highest, lowest) } else { (lowest, highest) };
    let (start, stop) = (bound(number(start)?, first), bound(number(stop)?, last));
    let inside = move |at: &i64| if step < 0 { *at > stop } else { *at < stop };
    let next = move |at: &i64| at.checked_add(step).filter(inside);
    let chosen = std::iter::successors(Some(start).filter(inside), next);
    Ok(chosen.filter_map(|index| usize::try_from(index).ok()))
}
