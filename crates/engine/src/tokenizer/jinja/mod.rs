//! Jinja as Hugging Face runs it in Python, on minijinja: the same operators, values, filters and methods.

mod expressions;
mod filters;
mod format;
mod json;
mod marks;
mod methods;
mod operators;
mod rewrite;
#[cfg(test)]
pub(super) mod tests;
mod values;
mod writer;

use std::fmt::Write as _;

use chrono::{DateTime, Local, TimeZone};
use minijinja::{Environment, Error, ErrorKind, Value};

pub(super) use self::marks::{MARKS, edge_of};
pub(super) use self::rewrite::rewrite;

/// Instructions that a template may take: thousands of messages, and no endless loop.
const FUEL: u64 = 20_000_000;

/// An environment without templates. Their sources go through [`rewrite`]. `now` is the time that `strftime_now` writes.
pub(super) fn environment(now: fn() -> DateTime<Local>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(|out, _, value| {
        match value.as_str() {
            Some(text) => out.write_str(text)?,
            None => out.write_str(&values::str(value)?)?,
        }
        Ok(())
    });
    filters::add_to(&mut environment);
    operators::add_to(&mut environment);
    environment.add_function("strftime_now", move |format: &str| strftime(format, &now()));
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, values::str(message)?))
    });
    environment
}

/// A date and time as Python's `strftime` writes it.
fn strftime<Z: TimeZone>(format: &str, now: &DateTime<Z>) -> Result<String, Error>
where
    Z::Offset: std::fmt::Display,
{
    // The fraction of a second has six digits in Python.
    let mut text = String::new();
    write!(text, "{}", now.format(&format.replace("%f", "%6f"))).map_err(|_| {
        let message = format!("strftime_now: `{format}` is not a format of dates");
        Error::new(ErrorKind::InvalidOperation, message)
    })?;
    Ok(text)
}
