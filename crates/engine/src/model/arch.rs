//! Shape and constants of a decoder-only transformer.

use tokenrouter_kernels::DecoderConfig;

use super::RopeScaling;

/// Families that differ in biases and norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama 2 and 3, SmolLM2, and others of this shape.
    Llama,
    /// As Llama; its files have biases on q, k and v.
    Qwen2,
    /// RMS norm on every head's q and k.
    Qwen3,
}

/// Everything but the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Arch {
    /// Which of the families.
    pub family: Family,
    /// The layers to run, as indices into the file.
    pub layers: Vec<usize>,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// The tokens that the head has rows for, ascending, if these are not all.
    pub head_tokens: Option<Vec<u32>>,
    /// Positions that the model was made for.
    pub context: usize,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Epsilon of the RMS norms.
    pub eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Their scaling.
    pub rope_scaling: RopeScaling,
    /// Rotary pairs are neighbours (`x[2i], x[2i+1]`, as in Llama GGUF files) or halves (`x[i], x[i + d/2]`).
    pub rope_interleaved: bool,
}

/// More layers than any model has.
const MAX_LAYERS: usize = 1024;

/// All layers of a model with `count` of them. A file may claim any number: it must not be allocated first.
pub(super) fn layers(count: usize) -> Result<Vec<usize>, String> {
    if count > MAX_LAYERS {
        return Err(format!("number of layers is {count}, allowed are 1 to {MAX_LAYERS}"));
    }
    Ok((0..count).collect())
}

impl Arch {
    /// Checks relations that the code relies on; the message names the value.
    pub(crate) fn check(&self) -> Result<(), String> {
        let sizes = [
            ("number of layers", self.layers.len(), MAX_LAYERS),
            ("embedding length", self.d_model, 1 << 16),
            ("number of heads", self.heads, 1024),
            ("number of key/value heads", self.kv_heads, 1024),
            ("head dimension", self.head_dim, 1024),
            ("feed-forward length", self.ffn, 1 << 20),
            ("vocabulary size", self.vocab, 1 << 24),
            ("context length", self.context, 1 << 24),
        ];
        for (name, value, most) in sizes {
            if value == 0 || value > most {
                return Err(format!("{name} is {value}, allowed are 1 to {most}"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!("{} heads are not a multiple of {} key/value heads", self.heads, self.kv_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("head dimension {} is odd", self.head_dim));
        }
        let turns = |frequency: &f32| frequency.is_finite() && *frequency > 0.0;
        let positive = |number: f32| number.is_finite() && number > 0.0;
        if !(positive(self.eps) && positive(self.rope_theta) && self.inverse_frequencies().iter().all(turns)) {
            return Err(format!(
                "norm epsilon {} and rope base {} must be positive, and so the frequencies",
                self.eps, self.rope_theta
            ));
        }
        Ok(())
    }

    /// The `head_dim / 2` rotary frequencies, in radians per position.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        self.rope_scaling.frequencies(self.rope_theta, self.head_dim)
    }

    /// Cosines and sines, `[positions, head_dim / 2]` each.
    pub fn rope_tables(&self, positions: usize) -> (Vec<f32>, Vec<f32>) {
        let frequencies = self.inverse_frequencies();
        let angles = (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f));
        let scale = self.rope_scaling.attention();
        angles.map(|angle| (angle.cos() * scale, angle.sin() * scale)).unzip()
    }

    /// What the kernels' decoders want to know, for contexts of up to `positions`.
    pub fn decoder_config(&self, positions: usize) -> DecoderConfig {
        let (cos, sin) = self.rope_tables(positions);
        DecoderConfig {
            d_model: self.d_model,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            ffn: self.ffn,
            vocab: self.vocab,
            head_tokens: self.head_tokens.clone(),
            eps: self.eps,
            cos,
            sin,
            rope_interleaved: self.rope_interleaved,
        }
    }

    /// Rows of the head.
    pub fn head_rows(&self) -> usize {
        self.head_tokens.as_ref().map_or(self.vocab, Vec::len)
    }

    /// Elements of keys and values per token, over all layers.
    pub fn kv_elements_per_token(&self) -> usize {
        self.layers.len() * 2 * self.kv_heads * self.head_dim
    }
}
