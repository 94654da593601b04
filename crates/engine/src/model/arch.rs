//! Shape and constants of a decoder-only transformer.

use tokenrouter_kernels::DecoderConfig;

/// Families that differ in biases and norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama 2 and 3, SmolLM2, and others of this shape.
    Llama,
    /// Biases on q, k and v.
    Qwen2,
    /// RMS norm on every head's q and k.
    Qwen3,
}

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
    /// A divisor per frequency (the `rope_freqs` tensor of GGUF files).
    Divisors(Vec<f32>),
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
    /// Positions that the model was made for.
    pub context: usize,
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
        if !(self.eps.is_finite() && self.eps > 0.0 && self.rope_theta.is_finite() && self.rope_theta > 0.0) {
            return Err(format!("norm epsilon {} and rope base {} must be positive", self.eps, self.rope_theta));
        }
        Ok(())
    }

    /// The `head_dim / 2` rotary frequencies, in radians per position.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let plain = (0..self.head_dim / 2).map(|i| self.rope_theta.powf(-((2 * i) as f32) / self.head_dim as f32));
        match &self.rope_scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear(factor) => plain.map(|f| f / factor).collect(),
            RopeScaling::Divisors(divisors) => plain.zip(divisors).map(|(f, d)| f / d).collect(),
            RopeScaling::Llama3 { factor, low, high, original_context } => plain
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

    /// Cosines and sines, `[positions, head_dim / 2]` each.
    pub fn rope_tables(&self, positions: usize) -> (Vec<f32>, Vec<f32>) {
        let frequencies = self.inverse_frequencies();
        let angles = (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f));
        angles.map(|angle| (angle.cos(), angle.sin())).unzip()
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
            eps: self.eps,
            cos,
            sin,
            rope_interleaved: self.rope_interleaved,
        }
    }

    /// Elements of keys and values per token, over all layers.
    pub fn kv_elements_per_token(&self) -> usize {
        self.layers.len() * 2 * self.kv_heads * self.head_dim
    }
}
