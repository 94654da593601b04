//! Instruction sets, selected at run time.

/// An instruction set that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// The baseline of the architecture.
    Baseline,
    /// AVX2, FMA and F16C.
    Avx2,
    /// `Avx2` and dot products of bytes.
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni,
    /// NEON and dot products of bytes.
    NeonDotprod,
}

impl Isa {
    /// The best instruction set of this processor.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self::Baseline)
    }

    /// All instruction sets of this processor, the best last.
    pub fn available() -> Vec<Self> {
        let all = [Self::Baseline, Self::Avx2, Self::AvxVnni, Self::Avx512Vnni, Self::NeonDotprod];
        all.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this processor has this instruction set.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = || {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            };
            let avx512 = || {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            };
            match self {
                Self::Baseline => true,
                Self::Avx2 => avx2(),
                Self::AvxVnni => avx2() && is_x86_feature_detected!("avxvnni"),
                Self::Avx512Vnni => avx2() && avx512(),
                Self::NeonDotprod => false,
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            match self {
                Self::Baseline => true,
                Self::NeonDotprod => std::arch::is_aarch64_feature_detected!("dotprod"),
                _ => false,
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            self == Self::Baseline
        }
    }

    /// The instruction set whose kernels compute products of weights in `format` where this one is in use.
    ///
    /// Formats in planes of bits (all quantised ones but Q4_0, Q4_1 and Q8_0) and F16 have kernels for AVX2 and in plain
    /// Rust only: processors with VNNI or AVX-512 use those for AVX2, and ARM uses plain Rust, as it does for floats.
    pub fn path(self, format: crate::Format) -> Self {
        use crate::Format::{Bf16, F32, Q4_0, Q4_1, Q8_0};
        match (self, format) {
            (_, Q4_0 | Q4_1 | Q8_0) | (Self::Avx512Vnni, F32 | Bf16) => self,
            (Self::Avx512Vnni | Self::AvxVnni, _) => Self::Avx2,
            (Self::NeonDotprod, _) => Self::Baseline,
            (Self::Baseline | Self::Avx2, _) => self,
        }
    }

    /// Returns an error if this processor lacks the instruction set. Every public function that takes an `Isa` starts
    /// with this check, and the kernels rely on it.
    pub(crate) fn check(self) -> Result<(), crate::Error> {
        crate::check("instruction set", self as usize, self.is_available(), "one that this processor has")
    }
}

/// Properties of an instruction set, for generic code that is compiled for it. Only functions compiled for this
/// instruction set (or a larger one) may be generic over it.
pub(crate) trait Level {
    /// Number of attention heads whose state fits into the registers.
    const HEADS: usize;
    /// Whether registers hold a tile of 4 x 16 numbers for each of these heads.
    const WIDE: bool;
    /// Converts 16 half-precision numbers to f32. None of them may be infinite or NaN.
    fn widen_f16(bits: &[u16; crate::LANES]) -> [f32; crate::LANES];
}

/// Like [`Level::widen_f16`], for one number.
#[inline(always)]
pub(crate) fn widen_f16(bits: u16) -> f32 {
    // Moves sign, exponent and mantissa to their places, then corrects the difference of the exponent biases.
    let bits = (i32::from(bits as i16) << 13) as u32 & 0x8fff_e000;
    f32::from_bits(bits) * f32::from_bits((127 + 112) << 23)
}

pub(crate) struct Portable;

impl Level for Portable {
    const HEADS: usize = 2;
    const WIDE: bool = false;
    #[inline(always)]
    fn widen_f16(bits: &[u16; crate::LANES]) -> [f32; crate::LANES] {
        bits.map(widen_f16)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Level for Avx2 {
    const HEADS: usize = 2;
    const WIDE: bool = false;
    #[inline(always)]
    fn widen_f16(bits: &[u16; crate::LANES]) -> [f32; crate::LANES] {
        use std::arch::x86_64::*;
        // SAFETY: 16 numbers are two vectors of 8; the caller is compiled for the instruction set.
        unsafe {
            let pointer = bits.as_ptr().cast::<__m128i>();
            let halves = [_mm256_cvtph_ps(_mm_loadu_si128(pointer)), _mm256_cvtph_ps(_mm_loadu_si128(pointer.add(1)))];
            std::mem::transmute::<[__m256; 2], [f32; crate::LANES]>(halves)
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx512;

#[cfg(target_arch = "x86_64")]
impl Level for Avx512 {
    const HEADS: usize = 4;
    const WIDE: bool = true;
    #[inline(always)]
    fn widen_f16(bits: &[u16; crate::LANES]) -> [f32; crate::LANES] {
        use std::arch::x86_64::*;
        // SAFETY: 16 numbers are one vector; the caller is compiled for the instruction set.
        unsafe {
            let wide = _mm512_cvtph_ps(_mm256_loadu_si256(bits.as_ptr().cast()));
            std::mem::transmute::<__m512, [f32; crate::LANES]>(wide)
        }
    }
}

/// Defines `fn $name(isa, args...)` that runs the `#[inline(always)]` function `$body`, compiled for `isa`.
macro_rules! for_each_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $body:path) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "kernels take their operands one by one")]
        $vis fn $name(isa: crate::Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                #[allow(clippy::too_many_arguments, reason = "kernels take their operands one by one")]
                fn avx2($($arg: $ty),*) { $body($($arg),*) }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
                #[allow(clippy::too_many_arguments, reason = "kernels take their operands one by one")]
                fn avx512($($arg: $ty),*) { $body($($arg),*) }
                match isa {
                    // SAFETY: public functions check `isa` with `Isa::check`, which detects the features.
                    crate::Isa::Avx512Vnni => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    crate::Isa::Avx2 | crate::Isa::AvxVnni => return unsafe { avx2($($arg),*) },
                    crate::Isa::Baseline | crate::Isa::NeonDotprod => {}
                }
            }
            let _ = isa;
            $body($($arg),*)
        }
    };
}
pub(crate) use for_each_isa;
