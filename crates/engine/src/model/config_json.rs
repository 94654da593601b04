//! The architecture in `config.json`.

use super::arch::layers;
use super::json::Object;
use super::{Arch, Family, rope};

/// What `config.json` says about a model.
#[derive(Debug)]
pub(super) struct HfConfig {
    pub(super) arch: Arch,
    /// Whether the output head is the embedding.
    pub(super) tied: bool,
    pub(super) warnings: Vec<String>,
}

/// Classes of the Transformers library that compute what we compute.
const CLASSES: [&str; 4] = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];

impl HfConfig {
    pub(super) fn read(config: &Object<'_>) -> Result<Self, String> {
        let model_type = config.text("model_type")?.unwrap_or("(missing)");
        let family = match model_type {
            "llama" | "mistral" => Family::Llama,
            "qwen2" => Family::Qwen2,
            "qwen3" => Family::Qwen3,
            other => {
                return Err(format!(
                    "`model_type` `{other}` is not supported, supported are `llama`, `mistral`, `qwen2`, `qwen3`"
                ));
            }
        };
        check_class(config)?;
        check_activation(config)?;
        let (d_model, heads) = (config.required_size("hidden_size")?, config.required_size("num_attention_heads")?);
        let layers = layers(config.required_size("num_hidden_layers")?)?;
        let kv_heads = match config.size("num_key_value_heads")? {
            Some(count) => count,
            // Only Llama's default is the number of heads.
            None if model_type == "llama" => heads,
            None => config.required_size("num_key_value_heads")?,
        };
        let head_dim = match config.size("head_dim")? {
            Some(dim) => dim,
            None if family == Family::Qwen3 => 128,
            None => d_model / heads.max(1),
        };
        let (rope_theta, rope_scaling) = rope::from_json(config)?;
        let mut context = rope_scaling.context(config.required_size("max_position_embeddings")?);
        let mut warnings = Vec::new();
        if let Some(window) = window(config, model_type, layers.len())?
            && window < context
        {
            warnings.push(capped(context, window));
            context = window;
        }
        let biases = config.flag("attention_bias")?.unwrap_or(false) || config.flag("qkv_bias")?.unwrap_or(false);
        let arch = Arch {
            family,
            layers,
            d_model,
            heads,
            kv_heads,
            head_dim,
            ffn: config.required_size("intermediate_size")?,
            vocab: config.required_size("vocab_size")?,
            head_tokens: None,
            context,
            qkv_bias: family == Family::Qwen2 || biases,
            eps: config.required_number("rms_norm_eps")?,
            rope_theta,
            rope_scaling,
            rope_interleaved: false,
        };
        arch.check()?;
        // All four families are untied when the key is missing.
        Ok(Self { arch, tied: config.flag("tie_word_embeddings")?.unwrap_or(false), warnings })
    }
}

/// The warning about a context that a window of attention shortens.
pub(super) fn capped(context: usize, window: usize) -> String {
    format!(
        "the context is {window} tokens instead of {context}: the model attends to the last {window} tokens only, and such \
         windows are not computed"
    )
}

fn check_class(config: &Object<'_>) -> Result<(), String> {
    let classes = config.texts("architectures")?.unwrap_or_default();
    let known = |class: &&str| CLASSES.iter().any(|known| known.eq_ignore_ascii_case(class));
    if classes.is_empty() || classes.iter().any(known) {
        return Ok(());
    }
    let known = CLASSES.map(|class| format!("`{class}`")).join(", ");
    Err(format!("`architectures` is `{}`, supported are {known}", classes.join(", ")))
}

fn check_activation(config: &Object<'_>) -> Result<(), String> {
    for key in ["hidden_act", "hidden_activation"] {
        match config.text(key)? {
            None | Some("silu" | "swish") => {}
            Some(other) => return Err(format!("key `{key}` is `{other}`, supported is `silu`")),
        }
    }
    Ok(())
}

/// The last tokens that some layer attends to, if that is not all of them.
fn window(config: &Object<'_>, model_type: &str, layers: usize) -> Result<Option<usize>, String> {
    let window = config.size("sliding_window")?;
    let slides = match config.texts("layer_types")? {
        Some(types) => {
            if types.len() != layers {
                return Err(format!("key `layer_types` has {} entries, the model has {layers} layers", types.len()));
            }
            let known = ["full_attention", "sliding_attention"];
            if let Some(other) = types.iter().find(|kind| !known.contains(kind)) {
                return Err(format!(
                    "key `layer_types` has `{other}`, supported are `full_attention`, `sliding_attention`"
                ));
            }
            let slides = types.contains(&"sliding_attention");
            if slides && window.is_none() {
                return Err("key `layer_types` has `sliding_attention`, but `sliding_window` is missing".into());
            }
            slides
        }
        // Qwen switches it on, for layers from a number on; the others have it when it is there.
        None if model_type.starts_with("qwen") => {
            let first = config.size("max_window_layers")?.unwrap_or(28);
            config.flag("use_sliding_window")?.unwrap_or(false) && first < layers
        }
        None => config.flag("use_sliding_window")?.unwrap_or(true),
    };
    match window {
        Some(0) if slides => Err("key `sliding_window` is `0`, allowed are 1 and more, and `null`".into()),
        window => Ok(window.filter(|_| slides)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(changes: Value) -> Result<HfConfig, String> {
        let mut config = json!({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
            "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 10, "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5});
        config.as_object_mut().expect("an object").extend(changes.as_object().expect("an object").clone());
        HfConfig::read(&Object::root(&config))
    }

    #[test]
    fn a_window_of_attention_shortens_the_context_aloud() {
        let full = |changes| read(changes).map(|config| (config.arch.context, config.warnings.len()));
        for (changes, want) in [
            (json!({"sliding_window": 100}), (100, 1)),
            (json!({"sliding_window": 256}), (256, 0)),
            (json!({"sliding_window": null}), (256, 0)),
            (json!({"sliding_window": 100, "use_sliding_window": false}), (256, 0)),
            (json!({"model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": 100}), (256, 0)),
            (
                json!({"model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": 100, "use_sliding_window": true,
                    "max_window_layers": 2}),
                (256, 0),
            ),
            (
                json!({"model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": 100, "use_sliding_window": true,
                    "max_window_layers": 1}),
                (100, 1),
            ),
            (json!({"sliding_window": 100, "layer_types": ["full_attention", "sliding_attention"]}), (100, 1)),
            (json!({"sliding_window": 100, "layer_types": ["full_attention", "full_attention"]}), (256, 0)),
        ] {
            assert_eq!(full(changes.clone()), Ok(want), "{changes}");
        }
        let config = read(json!({"sliding_window": 100})).expect("valid");
        assert!(config.warnings[0].starts_with("the context is 100 tokens instead of 256"), "{:?}", config.warnings);
    }

    #[test]
    fn yarn_makes_contexts_longer_and_cosines_larger() {
        let rope =
            json!({"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 256});
        let arch = read(json!({"rope_parameters": rope})).expect("valid").arch;
        assert_eq!(arch.context, 1024);
        let scale = 0.1 * 4f32.ln() + 1.0;
        let (cos, sin) = arch.rope_tables(2);
        let half = arch.head_dim / 2;
        assert_eq!((cos[0], sin[0]), (scale, 0.0));
        // The highest frequency is 1 with and without YaRN.
        assert_eq!((cos[half], sin[half]), (1f32.cos() * scale, 1f32.sin() * scale));
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        let config = read(json!({})).expect("valid");
        assert_eq!(
            (config.arch.kv_heads, config.arch.head_dim, config.tied, config.arch.qkv_bias),
            (4, 16, false, false)
        );
        assert!(read(json!({"attention_bias": true})).expect("valid").arch.qkv_bias);
        let qwen3 =
            read(json!({"model_type": "qwen3", "num_key_value_heads": 2, "hidden_act": "silu"})).expect("valid");
        assert_eq!(qwen3.arch.head_dim, 128);
        // For Qwen, Transformers would take another number than that of the heads.
        let message = read(json!({"model_type": "qwen3"})).expect_err("incomplete");
        assert_eq!(message, "key `num_key_value_heads` is missing");
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (changes, wanted) in [
            (json!({"model_type": "granite"}), "`model_type` `granite` is not supported, supported are `llama`"),
            (
                json!({"architectures": ["Qwen2ForRewardModel"]}),
                "`architectures` is `Qwen2ForRewardModel`, supported are",
            ),
            (json!({"hidden_act": "gelu"}), "key `hidden_act` is `gelu`, supported is `silu`"),
            (json!({"hidden_act": "gelu_pytorch_tanh"}), "`gelu_pytorch_tanh`"),
            (json!({"layer_types": ["full_attention", "linear_attention"]}), "`layer_types` has `linear_attention`"),
            (json!({"layer_types": ["full_attention"]}), "has 1 entries, the model has 2 layers"),
            (json!({"layer_types": ["full_attention", "sliding_attention"]}), "`sliding_window` is missing"),
            (json!({"sliding_window": -1}), "key `sliding_window` is `-1`, allowed is a whole number"),
            (json!({"num_key_value_heads": "two"}), "key `num_key_value_heads` is `\"two\"`"),
            (json!({"head_dim": 15}), "head dimension 15 is odd"),
            (
                json!({"tie_word_embeddings": "no"}),
                "key `tie_word_embeddings` is `\"no\"`, allowed is `true` or `false`",
            ),
        ] {
            let message = read(changes).expect_err("refused");
            assert!(message.contains(wanted), "{message}");
        }
    }
}
