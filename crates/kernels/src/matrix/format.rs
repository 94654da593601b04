//! Formats of weights in files.

use half::f16;

/// How a file stores weights: as floats, or in blocks of integers with scales, as ggml defines them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names of GGUF files, which `name` returns")]
pub enum Format {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// Its number in GGUF files (`ggml_type`), its name, the columns of a block, and the bytes of a block.
    const fn facts(self) -> (u32, &'static str, usize, usize) {
        match self {
            Self::F32 => (0, "F32", 1, 4),
            Self::F16 => (1, "F16", 1, 2),
            Self::Bf16 => (30, "BF16", 1, 2),
            Self::Q4_0 => (2, "Q4_0", 32, 18),
            Self::Q4_1 => (3, "Q4_1", 32, 20),
            Self::Q5_0 => (6, "Q5_0", 32, 22),
            Self::Q5_1 => (7, "Q5_1", 32, 24),
            Self::Q8_0 => (8, "Q8_0", 32, 34),
            Self::Q2K => (10, "Q2_K", 256, 84),
            Self::Q3K => (11, "Q3_K", 256, 110),
            Self::Q4K => (12, "Q4_K", 256, 144),
            Self::Q5K => (13, "Q5_K", 256, 176),
            Self::Q6K => (14, "Q6_K", 256, 210),
            Self::Iq4Nl => (20, "IQ4_NL", 32, 18),
            Self::Iq4Xs => (23, "IQ4_XS", 256, 136),
            Self::Mxfp4 => (39, "MXFP4", 32, 17),
        }
    }

    /// The format that GGUF files give this number.
    pub fn from_ggml(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.facts().0 == number)
    }

    /// Its number in GGUF files.
    pub const fn ggml(self) -> u32 {
        self.facts().0
    }

    /// Its name, as ggml writes it.
    pub const fn name(self) -> &'static str {
        self.facts().1
    }

    /// Columns of a block: 1 for floats.
    pub const fn columns(self) -> usize {
        self.facts().2
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        self.facts().3
    }

    /// Whether products need quantised activations.
    pub const fn is_quantized(self) -> bool {
        self.columns() > 1
    }

    /// The first block whose scales are not finite, or too large for the form that the kernels keep, with the number
    /// and what it is. `blocks` are quantised.
    pub fn find_bad_block(self, blocks: &[u8]) -> Option<(usize, f32, &'static str)> {
        let half = |block: &[u8], at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        // The kernels keep the smallest weight of blocks that begin with a scale alone.
        let smallest = |scale: f32, zero: f32| f16::from_f32(-zero * scale).to_f32();
        blocks.chunks_exact(self.bytes().max(1)).enumerate().find_map(|(index, block)| {
            let (scale, other, what) = match self {
                Self::F32 | Self::F16 | Self::Bf16 => return None,
                Self::Q8_0 | Self::Iq4Nl | Self::Iq4Xs => (half(block, 0), 0.0, ""),
                Self::Q4_0 => (half(block, 0), smallest(half(block, 0), 8.0), "smallest weight"),
                Self::Q5_0 => (half(block, 0), smallest(half(block, 0), 16.0), "smallest weight"),
                Self::Q4_1 | Self::Q5_1 => (half(block, 0), half(block, 2), "smallest weight"),
                Self::Q4K | Self::Q5K => (half(block, 0), half(block, 2), "scale of minima"),
                Self::Q2K => (half(block, 80), half(block, 82), "scale of minima"),
                Self::Q3K => (half(block, 108), 0.0, ""),
                Self::Q6K => (half(block, 208), 0.0, ""),
                // The largest weight is 12 times the scale.
                Self::Mxfp4 => (super::unpack::exponent(block[0]), 12.0 * super::unpack::exponent(block[0]), "weight"),
            };
            let bad = [(scale, "scale"), (other, what)].into_iter().find(|(value, _)| !value.is_finite());
            bad.map(|(value, what)| (index, value, what))
        })
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
