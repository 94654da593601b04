//! Python's formatting of texts: `text % values`, and `text.format(values)`.

use std::iter::Peekable;
use std::str::Chars;

use minijinja::value::Kwargs;
use minijinja::{Error, Value};

use super::values::{Tuple, exponent_text, failed, float, repr, str, type_name};

/// Widths and precisions that are allowed.
const WIDEST: usize = 1 << 12;

/// How one value is written.
#[derive(Debug, Default, Clone)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    comma: Option<char>,
    precision: Option<usize>,
    conversion: Option<char>,
}

fn number(characters: &mut Peekable<Chars<'_>>) -> Result<Option<usize>, Error> {
    let mut digits = String::new();
    while let Some(digit) = characters.next_if(char::is_ascii_digit) {
        digits.push(digit);
    }
    match digits.parse() {
        Ok(number) if number <= WIDEST => Ok(Some(number)),
        _ if digits.is_empty() => Ok(None),
        _ => Err(failed(format!("a width or precision of {digits} is more than {WIDEST}"))),
    }
}

/// `text % values`: a tuple has one value for every directive, and a dict is looked up by name.
pub(super) fn percent(text: &str, values: &Value) -> Result<String, Error> {
    let mut given = match values.downcast_object_ref::<Tuple>() {
        Some(tuple) => tuple.0.clone(),
        None => vec![values.clone()],
    }
    .into_iter();
    let (mut out, mut characters, mut named) = (String::new(), text.chars().peekable(), type_name(values) == "dict");
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut name = None;
        if characters.next_if_eq(&'(').is_some() {
            name = Some(characters.by_ref().take_while(|character| *character != ')').collect::<String>());
        }
        let spec = directive(&mut characters)?;
        let conversion = spec.conversion.ok_or_else(|| failed("incomplete format"))?;
        if conversion == '%' {
            out.push('%');
            continue;
        }
        let value = match name {
            Some(name) if named => values.get_attr(&name).ok().filter(|value| !value.is_undefined()),
            Some(_) => return Err(failed("format requires a mapping")),
            None => given.next(),
        };
        let value = value.ok_or_else(|| failed("not enough arguments for format string"))?;
        out.push_str(&converted(&value, &spec, conversion)?);
        named |= type_name(values) == "dict";
    }
    if given.next().is_some() && !named {
        return Err(failed("not all arguments converted during string formatting"));
    }
    Ok(out)
}

fn directive(characters: &mut Peekable<Chars<'_>>) -> Result<Spec, Error> {
    let mut spec = Spec { align: Some('>'), ..Spec::default() };
    while let Some(flag) = characters.next_if(|character| "-+ #0".contains(*character)) {
        match flag {
            '-' => spec.align = Some('<'),
            '#' => spec.alternate = true,
            '0' => spec.zero = true,
            sign => spec.sign = if spec.sign == Some('+') { spec.sign } else { Some(sign) },
        }
    }
    spec.width = number(characters)?.unwrap_or(0);
    if characters.next_if_eq(&'.').is_some() {
        spec.precision = Some(number(characters)?.unwrap_or(0));
    }
    while characters.next_if(|character| "hlL".contains(*character)).is_some() {}
    spec.conversion = characters.next();
    Ok(spec)
}

/// One value of `%`.
fn converted(value: &Value, spec: &Spec, conversion: char) -> Result<String, Error> {
    let mut spec = Spec { zero: spec.zero && spec.align != Some('<'), ..spec.clone() };
    match conversion {
        's' | 'r' | 'a' => {
            let text = if conversion == 's' { str(value)? } else { repr(value)? };
            spec.zero = false;
            Ok(textual(&text, &spec))
        }
        'd' | 'i' | 'u' => {
            let whole = match type_name(value) {
                "float" => Value::from(truncated(f64::try_from(value.clone())?)?),
                "int" | "bool" => value.clone(),
                other => return Err(failed(format!("%{conversion} format: a real number is required, not {other}"))),
            };
            spec.conversion = Some('d');
            numeric(&whole, &spec)
        }
        'x' | 'X' | 'o' if matches!(type_name(value), "int" | "bool") => numeric(value, &spec),
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => numeric(value, &spec),
        'c' => match (value.as_str(), value.as_i64().and_then(|code| char::from_u32(u32::try_from(code).ok()?))) {
            (Some(text), _) if text.chars().count() == 1 => Ok(textual(text, &spec)),
            (None, Some(character)) => Ok(textual(&character.to_string(), &spec)),
            _ => Err(failed("%c requires int or char")),
        },
        other => {
            Err(failed(format!("unsupported format character '{other}', or one that {} has not", type_name(value))))
        }
    }
}

pub(super) fn truncated(number: f64) -> Result<i64, Error> {
    match number.trunc() {
        whole if whole.abs() < 9.2e18 => Ok(whole as i64),
        _ => Err(failed(format!("cannot convert the float {} to an integer", float(number)))),
    }
}

/// `text.format(values)`.
pub(super) fn str_format(text: &str, values: &[Value], named: &Kwargs) -> Result<String, Error> {
    let (mut out, mut rest, mut next) = (String::new(), text, 0);
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let bracket = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(bracket) {
            out.push_str(bracket);
            rest = after;
            continue;
        }
        let Some((field, after)) = rest.split_once('}').filter(|_| bracket == "{") else {
            return Err(failed(format!("single '{bracket}' encountered in format string")));
        };
        if field.contains('{') {
            return Err(failed("a format in a format is not supported"));
        }
        rest = after;
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (path, conversion) = field.split_once('!').unwrap_or((field, ""));
        let value = looked_up(path, values, named, &mut next)?;
        out.push_str(&match conversion {
            "" => formatted(&value, spec)?,
            "s" => formatted(&Value::from(str(&value)?), spec)?,
            "r" => formatted(&Value::from(repr(&value)?), spec)?,
            other => return Err(failed(format!("unknown conversion specifier '{other}'"))),
        });
    }
    out.push_str(rest);
    Ok(out)
}

/// The value that `0`, `name`, `name.attribute` or `name[item]` stands for.
fn looked_up(path: &str, values: &[Value], named: &Kwargs, next: &mut usize) -> Result<Value, Error> {
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (name, mut rest) = path.split_at(end);
    let mut value = if name.is_empty() || name.bytes().all(|byte| byte.is_ascii_digit()) {
        let index = name.parse().unwrap_or(*next);
        *next += usize::from(name.is_empty());
        values.get(index).cloned().ok_or_else(|| failed(format!("format: no value {index}")))?
    } else {
        named.get::<Option<Value>>(name)?.ok_or_else(|| failed(format!("format: no value '{name}'")))?
    };
    while !rest.is_empty() {
        let (key, after) = match rest.strip_prefix('[').and_then(|inside| inside.split_once(']')) {
            Some((key, after)) => (key, after),
            None => rest[1..].split_at(rest[1..].find(['.', '[']).unwrap_or(rest.len() - 1)),
        };
        value = match key.parse::<usize>() {
            Ok(index) => value.get_item(&Value::from(index))?,
            Err(_) => value.get_attr(key)?,
        };
        if value.is_undefined() {
            return Err(failed(format!("format: no '{key}' in '{path}'")));
        }
        rest = after;
    }
    Ok(value)
}

fn formatted(value: &Value, spec: &str) -> Result<String, Error> {
    let bad = || failed(format!("invalid format specifier '{spec}' for {}", type_name(value)));
    let mut characters = spec.chars().peekable();
    let mut parsed = Spec::default();
    let mut ahead = characters.clone();
    if let (Some(fill), Some('<' | '>' | '=' | '^')) = (ahead.next(), ahead.next()) {
        parsed.fill = Some(fill);
        characters.next();
    }
    parsed.align = characters.next_if(|character| "<>=^".contains(*character));
    parsed.sign = characters.next_if(|character| "+- ".contains(*character));
    parsed.alternate = characters.next_if_eq(&'#').is_some();
    parsed.zero = characters.next_if_eq(&'0').is_some();
    parsed.width = number(&mut characters)?.unwrap_or(0);
    parsed.comma = characters.next_if(|character| ",_".contains(*character));
    if characters.next_if_eq(&'.').is_some() {
        parsed.precision = Some(number(&mut characters)?.ok_or_else(bad)?);
    }
    parsed.conversion = characters.next();
    if characters.next().is_some() {
        return Err(bad());
    }
    match (type_name(value), parsed.conversion) {
        ("str", None | Some('s')) => {
            parsed.fill = parsed.fill.or(parsed.zero.then_some('0'));
            parsed.zero = false;
            Ok(textual(value.as_str().unwrap_or_default(), &parsed))
        }
        ("bool", None) if spec.is_empty() => str(value),
        ("int" | "bool" | "float", _) => numeric(value, &parsed),
        _ if spec.is_empty() => str(value),
        _ => Err(bad()),
    }
}

fn textual(text: &str, spec: &Spec) -> String {
    let cut: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
    padded("", &cut, spec, '<')
}

/// `usual` is the side on which it stands.
fn padded(sign: &str, body: &str, spec: &Spec, usual: char) -> String {
    let missing = spec.width.saturating_sub(sign.chars().count() + body.chars().count());
    let (usual, fill) = if spec.zero { ('=', '0') } else { (usual, ' ') };
    let align = if spec.zero && spec.fill.is_none() { usual } else { spec.align.unwrap_or(usual) };
    let fill = |count: usize| String::from(spec.fill.unwrap_or(fill)).repeat(count);
    match align {
        '<' => format!("{sign}{body}{}", fill(missing)),
        '^' => format!("{}{sign}{body}{}", fill(missing / 2), fill(missing - missing / 2)),
        '=' => format!("{sign}{}{body}", fill(missing)),
        _ => format!("{}{sign}{body}", fill(missing)),
    }
}

fn numeric(value: &Value, spec: &Spec) -> Result<String, Error> {
    let bad = || failed(format!("unknown format code {:?} for {}", spec.conversion, type_name(value)));
    let whole = match type_name(value) {
        "int" => Some(i128::try_from(value.clone())?),
        "bool" => Some(i128::from(value.is_true())),
        "float" => None,
        _ => return Err(bad()),
    };
    let conversion = spec.conversion;
    let (negative, body) = match (whole, conversion) {
        (Some(whole), None | Some('d' | 'n' | 'x' | 'X' | 'o' | 'b' | 'c')) => {
            let size = whole.unsigned_abs();
            let prefix = |prefix: &'static str| if spec.alternate { prefix } else { "" };
            let body = match conversion {
                Some('x') => format!("{}{size:x}", prefix("0x")),
                Some('X') => format!("{}{size:X}", prefix("0X")),
                Some('o') => format!("{}{size:o}", prefix("0o")),
                Some('b') => format!("{}{size:b}", prefix("0b")),
                Some('c') => u32::try_from(size).ok().and_then(char::from_u32).ok_or_else(bad)?.to_string(),
                _ => size.to_string(),
            };
            (whole < 0, body)
        }
        _ => {
            let number = whole.map_or_else(|| f64::try_from(value.clone()), |whole| Ok(whole as f64))?;
            (number.is_sign_negative() && !number.is_nan(), real(number.abs(), spec).ok_or_else(bad)?)
        }
    };
    let body = match spec.comma {
        Some(comma) => grouped(&body, comma),
        None => body,
    };
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    Ok(padded(sign, &body, spec, '>'))
}

/// A comma or underscore after every three digits of the whole part.
fn grouped(body: &str, comma: char) -> String {
    let digits = body.bytes().take_while(u8::is_ascii_digit).count();
    let mut out = String::new();
    for (index, digit) in body[..digits].chars().enumerate() {
        if index > 0 && (digits - index) % 3 == 0 {
            out.push(comma);
        }
        out.push(digit);
    }
    out + &body[digits..]
}

/// A number that is not negative, or nothing where the conversion is none of floats.
fn real(number: f64, spec: &Spec) -> Option<String> {
    let digits = spec.precision.unwrap_or(6);
    let text = match spec.conversion {
        _ if !number.is_finite() => float(number),
        None if spec.precision.is_none() => float(number),
        None => {
            let text = general(number, digits, spec.alternate, 1);
            if text.contains(['.', 'e']) { text } else { text + ".0" }
        }
        Some('f' | 'F') => format!("{number:.digits$}"),
        Some('%') => format!("{:.digits$}%", number * 100.0),
        Some('e' | 'E') => scientific(number, digits),
        Some('g' | 'G' | 'n') => general(number, digits, spec.alternate, 0),
        Some(_) => return None,
    };
    Some(if matches!(spec.conversion, Some('E' | 'F' | 'G')) { text.to_uppercase() } else { text })
}

fn scientific(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{mantissa}{}", exponent_text(exponent.parse().unwrap_or(0)))
}

/// C's `%g`. `lower` is subtracted from the exponent at which it becomes scientific.
fn general(number: f64, digits: usize, keep: bool, lower: i32) -> String {
    let digits = digits.max(1);
    let text = format!("{number:.*e}", digits - 1);
    let exponent: i32 = text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let after = i32::try_from(digits).unwrap_or(i32::MAX) - 1 - exponent;
    let stripped = |text: &str| match text.contains('.') && !keep {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    match usize::try_from(after) {
        Ok(after) if exponent >= -4 && (lower == 0 || after >= 1) => stripped(&format!("{number:.after$}")),
        _ => {
            let mantissa = text.split_once('e').map_or("", |(mantissa, _)| mantissa);
            format!("{}{}", stripped(mantissa), exponent_text(exponent))
        }
    }
}
