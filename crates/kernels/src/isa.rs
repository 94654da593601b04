//! Instruction sets, chosen at run time.

/// An instruction set that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// What every processor of the architecture has.
    Baseline,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni,
}

impl Isa {
    /// The best one that this processor has.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self::Baseline)
    }

    /// All that this processor has, the best last.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::Baseline];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                all.push(Self::Avx2);
                let wide = is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni");
                if wide {
                    all.push(Self::Avx512Vnni);
                }
            }
        }
        all
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
                    // SAFETY: values other than `Baseline` come from `Isa::available`, which detected the features.
                    crate::Isa::Avx512Vnni => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    crate::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    crate::Isa::Baseline => {}
                }
            }
            let _ = isa;
            $body($($arg),*)
        }
    };
}
pub(crate) use for_each_isa;
