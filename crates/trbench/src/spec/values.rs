//! Values of a run's description that are written as text: `all`, `MODEL=URL`, `swe-smith`.

use std::fmt;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

use super::arrivals::Arrivals;
use super::system::System;
use crate::dataset::Lengths;
use crate::device::DeviceChoice;

/// A value, with the model that it is for where one is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Name of the model; empty when none is given.
    pub model: String,
    /// The value.
    pub value: String,
}

impl std::str::FromStr for Named {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        // An address may have a `=` of its own, after its scheme.
        let named = text.split_once('=').filter(|(model, _)| !model.contains([':', '/']));
        match named {
            Some((model, value)) if model.is_empty() || value.is_empty() => {
                Err("expected a value, or `MODEL=VALUE`".into())
            }
            Some((model, value)) => Ok(Self { model: model.to_owned(), value: value.to_owned() }),
            None => Ok(Self { model: String::new(), value: text.to_owned() }),
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.model.is_empty() {
            write!(f, "{}=", self.model)?;
        }
        f.write_str(&self.value)
    }
}

/// How many items of a dataset to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumPrompts {
    /// All of them, once.
    All,
    /// This many, from the start.
    First(usize),
}

impl std::str::FromStr for NumPrompts {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "all" => Ok(Self::All),
            Ok(0) | Err(_) => Err("expected a number above 0, or `all`".into()),
            Ok(number) => Ok(Self::First(number)),
        }
    }
}

impl fmt::Display for NumPrompts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::First(number) => write!(f, "{number}"),
        }
    }
}

/// Workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Competition problems: short in, long out.
    Aime,
    /// The same with room for 8192 tokens of output.
    #[value(name = "aime-8k")]
    Aime8k,
    /// Agentic coding sessions: long in, short out, the turns of a session one after the other.
    SweSmith,
    /// Random words, `--input-len` of them.
    Random,
    /// The prompts or conversations of `--dataset-path`.
    Custom,
}

impl Workload {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aime => "aime",
            Self::Aime8k => "aime-8k",
            Self::SweSmith => "swe-smith",
            Self::Random => "random",
            Self::Custom => "custom",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Workload {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::value_variants();
        known.iter().copied().find(|workload| workload.name() == text).ok_or_else(|| {
            let names: Vec<_> = known.iter().map(|workload| format!("`{workload}`")).collect();
            format!("expected one of {}", names.join(", "))
        })
    }
}

/// A latency of which percentiles are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyMetric {
    /// Time to the first token.
    Ttft,
    /// Mean time between the tokens of a request.
    Tpot,
    /// Time between two tokens, each by itself.
    Itl,
    /// Time to the end.
    E2el,
}

impl LatencyMetric {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ttft, Self::Tpot, Self::Itl, Self::E2el];
}

impl fmt::Display for LatencyMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::Itl => "itl",
            Self::E2el => "e2el",
        })
    }
}

impl std::str::FromStr for LatencyMetric {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|metric| metric.to_string() == text);
        found.ok_or_else(|| "expected `ttft`, `tpot`, `itl` or `e2el`".into())
    }
}

/// Types that are serialised as they are written on a command line.
macro_rules! serialise_as_text {
    ($($kind:ty),+) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+};
}

serialise_as_text!(Named, Workload, LatencyMetric, System, Arrivals, Lengths, DeviceChoice);

impl Serialize for NumPrompts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::First(count) => count.serialize(serializer),
        }
    }
}
