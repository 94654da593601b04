//! Rotary frequencies: what files say about them, and their values.

use super::ModelError;
use super::json::Object;
use crate::files::GgufMetadata;

/// Change of the rotary frequencies for contexts longer than those trained on.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All frequencies divided by a factor.
    Linear(f32),
    /// Llama 3: low frequencies divided, high ones kept, a ramp in between.
    Llama3 {
        /// Division of the low frequencies.
        factor: f32,
        /// Wavelengths above `original_context / low` count as low frequencies.
        low: f32,
        /// Wavelengths below `original_context / high` count as high frequencies.
        high: f32,
        /// Context length of the training.
        original_context: f32,
    },
    /// YaRN: as Llama 3 with another ramp, and larger cosines and sines.
    Yarn(Yarn),
    /// A divisor per frequency (the `rope_freqs` tensor of GGUF files).
    Divisors(Vec<f32>),
}

/// Constants of YaRN.
#[derive(Debug, Clone, PartialEq)]
pub struct Yarn {
    /// Division of the low frequencies.
    pub factor: f32,
    /// Context length of the training.
    pub original_context: f32,
    /// Frequencies that turn this often within it are kept.
    pub beta_fast: f32,
    /// Frequencies that turn less often are divided.
    pub beta_slow: f32,
    /// Whether the ends of the ramp are whole numbers.
    pub truncate: bool,
    /// Factor of cosines and sines.
    pub attention: f32,
}

impl Yarn {
    /// The usual factor of cosines and sines.
    fn usual_attention(factor: f32, mscale: f32) -> f32 {
        if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
    }

    /// The share of each frequency that is divided, from 0 to 1.
    fn ramp(&self, theta: f32, dim: usize) -> impl Fn(usize) -> f32 {
        let (theta, context, width) = (f64::from(theta), f64::from(self.original_context), dim as f64);
        let turns = |beta: f32| width * (context / (f64::from(beta) * std::f64::consts::TAU)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (turns(self.beta_fast), turns(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(width - 1.0));
        // Without it, a ramp between equal ends would be 0 / 0.
        let length = if low == high { 0.001 } else { high - low };
        move |i| ((i as f64 - low) / length).clamp(0.0, 1.0) as f32
    }
}

impl RopeScaling {
    /// The `dim / 2` rotary frequencies of a head, in radians per position.
    pub(super) fn frequencies(&self, theta: f32, dim: usize) -> Vec<f32> {
        let plain = (0..dim / 2).map(|i| theta.powf(-((2 * i) as f32) / dim as f32));
        match self {
            Self::None => plain.collect(),
            Self::Linear(factor) => plain.map(|f| f / factor).collect(),
            Self::Divisors(divisors) => plain.zip(divisors).map(|(f, d)| f / d).collect(),
            Self::Yarn(yarn) => {
                let ramp = yarn.ramp(theta, dim);
                plain.enumerate().map(|(i, f)| f / yarn.factor * ramp(i) + f * (1.0 - ramp(i))).collect()
            }
            Self::Llama3 { factor, low, high, original_context } => plain
                .map(|f| {
                    let wavelength = 2.0 * std::f32::consts::PI / f;
                    if wavelength < original_context / high {
                        f
                    } else if wavelength > original_context / low {
                        f / factor
                    } else {
                        let smooth = (original_context / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect(),
        }
    }

    /// Factor of cosines and sines.
    pub(super) fn attention(&self) -> f32 {
        if let Self::Yarn(yarn) = self { yarn.attention } else { 1.0 }
    }

    /// Positions that a model for `context` positions has with this scaling. YaRN is switched on by one entry in a file
    /// that says how long contexts were without it.
    pub(super) fn context(&self, context: usize) -> usize {
        match self {
            Self::Yarn(yarn) => context.max((yarn.original_context * yarn.factor) as usize),
            _ => context,
        }
    }
}

/// The base of the rotary frequencies and their scaling, as `config.json` has them: `rope_parameters` (since Transformers
/// 5), or `rope_theta` and `rope_scaling`.
pub(super) fn from_json(config: &Object<'_>) -> Result<(f32, RopeScaling), String> {
    let (new, old) = (config.object("rope_parameters")?, config.object("rope_scaling")?);
    let mut theta = config.number("rope_theta")?;
    let mut scaling = None;
    for rope in [new, old].into_iter().flatten() {
        if let Some(kind) = rope.entries().find(|(_, value)| value.is_object()) {
            return Err(format!(
                "{} is given per type of layer (`{}`), one for all layers is supported",
                rope.name(),
                kind.0
            ));
        }
        if let Some(nested) = rope.number("rope_theta")?
            && *theta.get_or_insert(nested) != nested
        {
            let other = theta.unwrap_or_default();
            return Err(format!("key `rope_theta` is {other} and, in {}, {nested}: they must agree", rope.name()));
        }
        let read = scaling_of(config, &rope)?;
        if *scaling.get_or_insert_with(|| read.clone()) != read {
            return Err("keys `rope_parameters` and `rope_scaling` say different things: leave one out".into());
        }
    }
    let theta = theta.unwrap_or(10_000.0);
    if theta <= 1.0 {
        return Err(format!("key `rope_theta` is {theta}, allowed are numbers above 1"));
    }
    Ok((theta, scaling.unwrap_or(RopeScaling::None)))
}

fn scaling_of(config: &Object<'_>, rope: &Object<'_>) -> Result<RopeScaling, String> {
    let kind = match (rope.text("rope_type")?, rope.text("type")?) {
        (Some(kind), _) | (None, Some(kind)) => kind,
        (None, None) => "default",
    };
    let keys: &[&str] = match kind {
        "default" => &[],
        "linear" => &["factor"],
        "llama3" => &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
        "yarn" => &[
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
        other => {
            return Err(format!(
                "{} has type `{other}`, supported are `default`, `linear`, `llama3` and `yarn`",
                rope.name()
            ));
        }
    };
    for (key, value) in rope.entries().filter(|(_, value)| !value.is_null()) {
        let neutral = key == "partial_rotary_factor" && value.as_f64() == Some(1.0);
        if !neutral && !keys.contains(&key) && !["rope_type", "type", "rope_theta"].contains(&key) {
            let allowed: Vec<_> = ["rope_theta"].iter().chain(keys).map(|key| format!("`{key}`")).collect();
            return Err(format!(
                "key `{key}` is `{value}` in {} of type `{kind}`, allowed are {}",
                rope.name(),
                allowed.join(", ")
            ));
        }
    }
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear(factor(rope)?)),
        "llama3" => {
            let (low, high) = (rope.required_number("low_freq_factor")?, rope.required_number("high_freq_factor")?);
            if !(low > 0.0 && high > low) {
                let name = rope.name();
                return Err(format!(
                    "`low_freq_factor` {low} of {name} must be above 0 and below `high_freq_factor` {high}"
                ));
            }
            let original_context = original_context(config, rope)?;
            let missing = || format!("key `original_max_position_embeddings` of {} is missing", rope.name());
            let original_context = original_context.ok_or_else(missing)?;
            Ok(RopeScaling::Llama3 { factor: factor(rope)?, low, high, original_context })
        }
        _ => yarn(config, rope).map(RopeScaling::Yarn),
    }
}

fn factor(rope: &Object<'_>) -> Result<f32, String> {
    let factor = rope.required_number("factor")?;
    if factor < 1.0 {
        return Err(format!("key `factor` of {} is {factor}, allowed are 1 and more", rope.name()));
    }
    Ok(factor)
}

/// The context of the training, of the scaling or of the whole file.
fn original_context(config: &Object<'_>, rope: &Object<'_>) -> Result<Option<f32>, String> {
    const KEY: &str = "original_max_position_embeddings";
    let (inner, outer) = (rope.size(KEY)?, config.size(KEY)?);
    if let (Some(inner), Some(outer)) = (inner, outer)
        && inner != outer
    {
        return Err(format!("key `{KEY}` is {outer} and, in {}, {inner}: they must agree", rope.name()));
    }
    match inner.or(outer) {
        Some(0) => Err(format!("key `{KEY}` is 0, allowed are 1 and more")),
        context => Ok(context.map(|context| context as f32)),
    }
}

fn yarn(config: &Object<'_>, rope: &Object<'_>) -> Result<Yarn, String> {
    let factor = factor(rope)?;
    let original_context = match original_context(config, rope)? {
        Some(context) => context,
        None => config.required_size("max_position_embeddings")? as f32,
    };
    let positive = |key: &str| match rope.number(key)? {
        Some(value) if value <= 0.0 => {
            Err(format!("key `{key}` of {} is {value}, allowed are numbers above 0", rope.name()))
        }
        value => Ok(value),
    };
    let attention = match (positive("attention_factor")?, rope.number("mscale")?, rope.number("mscale_all_dim")?) {
        (Some(attention), ..) => attention,
        (None, Some(above), Some(below)) if above != 0.0 && below != 0.0 => {
            Yarn::usual_attention(factor, above) / Yarn::usual_attention(factor, below)
        }
        _ => Yarn::usual_attention(factor, 1.0),
    };
    let (beta_fast, beta_slow) = (positive("beta_fast")?.unwrap_or(32.0), positive("beta_slow")?.unwrap_or(1.0));
    let truncate = rope.flag("truncate")?.unwrap_or(true);
    Ok(Yarn { factor, original_context, beta_fast, beta_slow, truncate, attention })
}

/// The scaling that GGUF metadata of the architecture `name` tell of.
pub(super) fn from_gguf(metadata: &GgufMetadata<'_>, name: &str, context: usize) -> Result<RopeScaling, ModelError> {
    let key = |suffix: &str| format!("{name}.rope.{suffix}");
    let number = |suffix: &str| metadata.optional_f32(&key(suffix));
    let factor = match number("scaling.factor")? {
        Some(factor) => Some(factor),
        None => number("scale_linear")?,
    };
    // As llama.cpp has it: 0 says that there is no scaling, and a factor without a type is linear.
    let factor = factor.filter(|factor| *factor != 0.0).unwrap_or(1.0);
    if !(factor.is_finite() && factor >= 1.0) {
        return Err(
            metadata.invalid(format!("metadata key `{}` is {factor}, allowed are 1 and more", key("scaling.factor")))
        );
    }
    let kind = metadata.optional_str(&key("scaling.type"))?;
    match kind.as_deref() {
        Some("none") => Ok(RopeScaling::None),
        None | Some("linear") if factor == 1.0 => Ok(RopeScaling::None),
        None | Some("linear") => Ok(RopeScaling::Linear(factor)),
        Some("yarn") => {
            let original = metadata.optional_usize(&key("scaling.original_context_length"))?;
            let positive = |suffix: &str, usual: f32| match number(suffix)? {
                Some(value) if !(value.is_finite() && value > 0.0) => {
                    let message = format!("metadata key `{}` is {value}, allowed are numbers above 0", key(suffix));
                    Err(metadata.invalid(message))
                }
                value => Ok(value.unwrap_or(usual)),
            };
            let scale = positive("scaling.attn_factor", 1.0)? * positive("scaling.yarn_attn_factor", 1.0)?;
            Ok(RopeScaling::Yarn(Yarn {
                factor,
                original_context: original.filter(|original| *original > 0).unwrap_or(context) as f32,
                beta_fast: positive("scaling.yarn_beta_fast", 32.0)?,
                beta_slow: positive("scaling.yarn_beta_slow", 1.0)?,
                truncate: true,
                attention: scale * Yarn::usual_attention(factor, 1.0),
            }))
        }
        Some(other) => {
            let key = key("scaling.type");
            let message = format!("metadata key `{key}` is `{other}`, supported are `none`, `linear` and `yarn`");
            Err(metadata.invalid(message))
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use serde_json::{Value, json};

    fn read(config: &Value) -> Result<(f32, RopeScaling), String> {
        from_json(&Object::root(config))
    }

    /// Reference values: Hugging Face's `_compute_yarn_parameters`, written down in its own terms with 64-bit floats.
    fn yarn_of_transformers(base: f64, dim: usize, factor: f64, context: f64) -> Vec<f64> {
        let correction = |rotations: f64| {
            (dim as f64 * (context / (rotations * 2.0 * std::f64::consts::PI)).ln()) / (2.0 * base.ln())
        };
        let low = correction(32.0).floor().max(0.0);
        let high = correction(1.0).ceil().min(dim as f64 - 1.0);
        let frequency = |i: usize| {
            let position = base.powf((2 * i) as f64 / dim as f64);
            let extrapolation = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            1.0 / (factor * position) * (1.0 - extrapolation) + 1.0 / position * extrapolation
        };
        (0..dim / 2).map(frequency).collect()
    }

    #[test]
    fn yarn_is_that_of_transformers() {
        let config = json!({"max_position_embeddings": 40_960, "rope_theta": 1e6,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}});
        let (theta, scaling) = read(&config).expect("valid");
        assert_eq!(scaling.context(40_960), 131_072);
        let want = yarn_of_transformers(1e6, 128, 4.0, 32_768.0);
        let got = scaling.frequencies(theta, 128);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((f64::from(*got) / want - 1.0).abs() < 1e-5, "frequency {i}: {got} instead of {want}");
        }
        // The highest is kept, the lowest divided, and in between is a ramp (for this model from 23 to 40).
        assert_eq!(got[0], 1.0);
        assert!((f64::from(got[63]) * 4.0 / 1e6f64.powf(-126.0 / 128.0) - 1.0).abs() < 1e-5);
        let plain = RopeScaling::None.frequencies(theta, 128);
        assert!(
            got[23] == plain[23] && got[24] < plain[24] && got[39] > plain[39] / 4.0 && got[40] <= plain[40] / 3.999
        );
        assert!((scaling.attention() - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6);
    }

    #[test]
    fn the_attention_factor_is_the_files_or_follows_from_mscale() {
        let attention = |more: Value| {
            let mut rope = json!({"rope_type": "yarn", "factor": 40.0, "rope_theta": 10_000.0});
            rope.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let config = json!({"max_position_embeddings": 4096, "rope_parameters": rope});
            read(&config).map(|(_, scaling)| scaling.attention())
        };
        let usual = 0.1 * 40f32.ln() + 1.0;
        assert_eq!(attention(json!({})), Ok(usual));
        assert_eq!(attention(json!({"attention_factor": 1.5, "mscale": 2.0})), Ok(1.5));
        let ratio = (0.1 * 2.0 * 40f32.ln() + 1.0) / usual;
        assert_eq!(attention(json!({"mscale": 2.0, "mscale_all_dim": 1.0})), Ok(ratio));
        assert!(attention(json!({"attention_factor": -1.0})).is_err_and(|message| message.contains("above 0")));
    }

    #[test]
    fn new_and_old_forms_say_the_same() {
        let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192});
        let mut nested = scaling.clone();
        nested["rope_theta"] = json!(500_000.0);
        let old = json!({"rope_theta": 500_000.0, "rope_scaling": scaling});
        let new = json!({"rope_parameters": nested});
        assert_eq!(read(&old), read(&new));
        let want = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 8192.0 };
        assert_eq!(read(&new), Ok((500_000.0, want)));
        let plain = json!({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "rope_scaling": null});
        assert_eq!(read(&plain), Ok((1e6, RopeScaling::None)));
        let linear = json!({"rope_scaling": {"type": "linear", "factor": 2}});
        assert_eq!(read(&linear), Ok((10_000.0, RopeScaling::Linear(2.0))));
        assert_eq!(RopeScaling::Linear(2.0).frequencies(10_000.0, 4), [0.5, 0.005]);
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (config, wanted) in [
            (
                json!({"rope_parameters": {"rope_type": "longrope"}}),
                "`rope_parameters` has type `longrope`, supported are",
            ),
            (json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}), "`rope_scaling` has type `dynamic`"),
            (json!({"rope_scaling": {"type": "linear"}}), "`factor` of `rope_scaling` is missing"),
            (json!({"rope_scaling": {"type": "linear", "factor": 0.0}}), "is 0, allowed are 1 and more"),
            (json!({"rope_scaling": {"type": "linear", "factor": "2"}}), "`factor` of `rope_scaling` is `\"2\"`"),
            (json!({"rope_scaling": {"rope_type": "default", "mrope_section": [16]}}), "key `mrope_section` is `[16]`"),
            (json!({"rope_scaling": "linear"}), "key `rope_scaling` is `\"linear\"`"),
            (json!({"rope_parameters": {"partial_rotary_factor": 0.5}}), "key `partial_rotary_factor` is `0.5`"),
            (
                json!({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}),
                "per type of layer (`full_attention`)",
            ),
            (json!({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}), "`rope_theta` is 5 and, in"),
            (
                json!({"rope_parameters": {"rope_theta": 6.0}, "rope_scaling": {"type": "linear", "factor": 2.0}}),
                "different things",
            ),
            (json!({"rope_theta": 0.0}), "above 1"),
        ] {
            let message = read(&config).expect_err("refused");
            assert!(message.contains(wanted), "{message}");
        }
    }
}
