//! Values that YAML writes in more than one way: thresholds, devices.

use schemars::JsonSchema;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{DeviceConfig, ThresholdConfig};

impl<'de> Deserialize<'de> for ThresholdConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ThresholdVisitor;
        impl<'de> Visitor<'de> for ThresholdVisitor {
            type Value = ThresholdConfig;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("`auto`, `adaptive`, `eager`, or a list with one threshold per model, such as `[1, 3]`")
            }
            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Self::Value, E> {
                match value {
                    "auto" => Ok(ThresholdConfig::Auto),
                    "adaptive" => Ok(ThresholdConfig::Adaptive),
                    "eager" => Ok(ThresholdConfig::Eager),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(value), &self)),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = seq.next_element::<u32>()? {
                    values.push(value);
                }
                Ok(ThresholdConfig::Fixed(values))
            }
        }
        deserializer.deserialize_any(ThresholdVisitor)
    }
}

impl Serialize for ThresholdConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Eager => serializer.serialize_str("eager"),
            Self::Auto => serializer.serialize_str("auto"),
            Self::Adaptive => serializer.serialize_str("adaptive"),
            Self::Fixed(vector) => vector.serialize(serializer),
        }
    }
}

impl JsonSchema for ThresholdConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ThresholdConfig".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"anyOf": [
            {"type": "string", "enum": ["auto", "adaptive", "eager"]},
            {"type": "array", "items": {"type": "integer", "minimum": 1}}
        ]})
    }
}

impl std::fmt::Display for DeviceConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl<'de> Deserialize<'de> for DeviceConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            other => {
                other.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()).map(Self::Cuda).ok_or_else(|| {
                    D::Error::custom(format!("unknown device `{other}`, allowed are `cpu` and `cuda:N`"))
                })
            }
        }
    }
}

impl Serialize for DeviceConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for DeviceConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DeviceConfig".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^(cpu|cuda(:[0-9]+)?)$"})
    }
}
