//! Which tensors a model has. One that it does not have could change what the model computes, so it is not passed over.

use std::collections::HashSet;

use super::{Arch, Family, Slot};

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Read.
    Used,
    /// A bias that is not computed, which some converters write although there is none.
    MustBeZero,
    /// Computed here, or not used by anybody.
    Irrelevant,
    Unknown,
}

/// Ends of names of tensors that other programs keep in files although they compute them.
const IRRELEVANT: [&str; 5] = [
    ".rotary_emb.inv_freq",
    ".rotary_emb.cos_cached",
    ".rotary_emb.sin_cached",
    ".attn.masked_bias",
    ".attn_rot_embd.weight",
];

/// Names of the tensors of one model.
pub(super) struct Names {
    used: HashSet<String>,
    zero: HashSet<String>,
    biases: HashSet<String>,
    layers: usize,
}

impl Names {
    /// Those of `arch` with all its layers; `name` is what the files call a tensor.
    pub(super) fn new(arch: &Arch, name: impl Fn(Slot) -> String) -> Self {
        let mut used: HashSet<_> = [Slot::Embedding, Slot::FinalNorm, Slot::Head].map(&name).into();
        used.insert("rope_freqs.weight".into());
        let (mut zero, mut biases) = (HashSet::new(), HashSet::new());
        let matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
        for layer in &arch.layers {
            let slot = |part: &'static str| name(Slot::Layer(*layer, part));
            used.extend(matrices.iter().chain(&["attn_norm", "ffn_norm"]).map(|part| slot(part)));
            if arch.family == Family::Qwen3 {
                used.extend(["attn_q_norm", "attn_k_norm"].map(slot));
            }
            let bias = |part: &&'static str| name(Slot::LayerBias(*layer, part));
            let target = if arch.qkv_bias { &mut used } else { &mut biases };
            target.extend(matrices[..3].iter().map(bias));
            zero.extend(matrices[3..].iter().map(bias));
        }
        Self { used, zero, biases, layers: arch.layers.len() }
    }

    pub(super) fn of(&self, name: &str) -> Kind {
        if self.used.contains(name) {
            Kind::Used
        } else if self.zero.contains(name) {
            Kind::MustBeZero
        } else if IRRELEVANT.iter().any(|end| name.ends_with(end)) {
            Kind::Irrelevant
        } else {
            Kind::Unknown
        }
    }

    /// The message about unknown tensors, of which `name` is the first.
    pub(super) fn refusal(&self, name: &str, count: usize) -> String {
        let why = if self.biases.contains(name) {
            ": config.json does not say `\"attention_bias\": true`".to_owned()
        } else if ["weight_scale", "scales", "qweight", "qzeros", "absmax", "quant_state", "g_idx", "input_scale"]
            .iter()
            .any(|part| name.contains(part))
        {
            ": quantised weights in safetensors are not supported, allowed are F32, F16 and BF16".to_owned()
        } else {
            format!(", which has {} layers", self.layers)
        };
        let others = if count > 1 { format!(" (and {} other tensors)", count - 1) } else { String::new() };
        format!("tensor `{name}`{others} is not part of the model{why}")
    }
}
