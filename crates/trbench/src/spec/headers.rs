//! `--header`: what is sent to servers besides the request. Values are secrets: nothing shows, writes or records them.

use std::fmt;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

/// The variable that holds a key for servers, as for OpenAI's clients.
pub const KEY_VARIABLE: &str = "OPENAI_API_KEY";

/// Headers for servers.
#[derive(Clone, Default, PartialEq)]
pub struct Headers(HeaderMap);

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Headers {
    /// Reads `Name: value` of each flag. Errors name the header, never its value.
    pub(crate) fn parse(flags: &[String]) -> Result<Self, String> {
        let mut map = HeaderMap::new();
        for flag in flags {
            let (name, value) = flag.split_once(':').ok_or("--header has no `:`, expected `Name: value`")?;
            let name = name.trim();
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                format!("--header: `{name}` is no name of a header, allowed are letters, digits and `-`")
            })?;
            let value = HeaderValue::from_str(value.trim())
                .map_err(|_| format!("--header: the value of `{name}` has characters that no header can have"))?;
            map.append(header, secret(value));
        }
        Ok(Self(map))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These, and `Authorization` with the key where no flag sets it.
    pub(crate) fn with_key(&self, key: Option<String>) -> Result<HeaderMap, String> {
        let mut map = self.0.clone();
        if let Some(key) = key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty())
            && !map.contains_key(AUTHORIZATION)
        {
            let value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| format!("{KEY_VARIABLE} has characters that no header can have"))?;
            map.insert(AUTHORIZATION, secret(value));
        }
        Ok(map)
    }
}

fn secret(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

/// A command line whose headers have no values, for records of it.
pub(crate) fn without_secrets(args: impl Iterator<Item = String>) -> Vec<String> {
    let hide = |flag: &str| format!("{}: ...", flag.split(':').next().unwrap_or_default().trim());
    let mut is_value = false;
    args.map(|arg| {
        let shown = match arg.strip_prefix("--header=") {
            _ if is_value => hide(&arg),
            Some(flag) => format!("--header={}", hide(flag)),
            None => arg.clone(),
        };
        is_value = !is_value && arg == "--header";
        shown
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: &[&str]) -> Result<Headers, String> {
        Headers::parse(&flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn values_are_sent_and_never_shown() {
        let headers = parse(&["X-Team: a:b", "api-key:hush"]).expect("two headers");
        let sent = headers.with_key(Some(" key\n".into())).expect("a map");
        assert_eq!(sent["x-team"], "a:b");
        assert_eq!(
            (&sent["api-key"], &sent["authorization"]),
            (&HeaderValue::from_static("hush"), &HeaderValue::from_static("Bearer key"))
        );
        let shown = format!("{headers:?} {sent:?}");
        assert!(shown.contains("api-key") && !shown.contains("hush") && !shown.contains("Bearer"), "{shown}");
        let own = parse(&["authorization: Basic x"]).expect("a header").with_key(Some("key".into())).expect("a map");
        assert_eq!(own["authorization"], "Basic x", "a flag comes before the variable");
        assert!(Headers::default().with_key(Some(String::new())).expect("a map").is_empty());
        for flag in ["hush", "a b: hush", "ok: hu\nsh"] {
            let why = parse(&[flag]).expect_err("refused");
            assert!(why.contains("--header") && !why.contains("hush") && !why.contains("hu\n"), "{why}");
        }
    }

    #[test]
    fn a_recorded_command_line_has_no_values_of_headers() {
        let args = ["trbench", "run", "--header", "A: hush", "--header=B: hush", "--seed", "1"];
        let shown = without_secrets(args.iter().map(|arg| (*arg).to_owned()));
        assert_eq!(shown, ["trbench", "run", "--header", "A: ...", "--header=B: ...", "--seed", "1"]);
    }
}
