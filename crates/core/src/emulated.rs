//! A latency profile in place of a model: the real scheduler without weights. Everything that comes out of it is to be
//! called "emulated".
//!
//! The emulated model does keep a KV cache, of one hash per position that stands for all tokens before it. Its tokens
//! are functions of that hash, so a wrong block table, a lost or doubled token or a stale position changes the output:
//! the tests of the scheduler live from this.

use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::keyed::{Purpose, draw_u64, draw_unit};
use crate::step::{Batch, ModelRunner, RunnerError, SignalNeeds, Softmax, StepOutput};

/// Largest logits that an emulated model makes up.
const TOP: u32 = 20;

/// Signals of `needs` that no emulated model has, in words.
pub fn missing_signal(needs: &SignalNeeds) -> Option<&'static str> {
    match needs {
        SignalNeeds { hidden: true, .. } => Some("hidden states"),
        SignalNeeds { embedding: true, .. } => Some("embeddings"),
        SignalNeeds { extra_row: Some(_), .. } => Some("an extra row of the head"),
        SignalNeeds { top_logits, .. } if *top_logits > TOP as usize => Some("more than 20 of the largest logits"),
        _ => None,
    }
}

/// Step time by batch size, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum LatencyProfile {
    /// The same for every batch size.
    Constant(f64),
    /// Entry `b - 1` is for batch size `b`.
    Table(Vec<f64>),
}

impl LatencyProfile {
    /// Step time in milliseconds at batch size `batch` (at least 1).
    pub fn at(&self, batch: usize) -> f64 {
        match self {
            Self::Constant(value) => *value,
            Self::Table(values) => {
                let last = values.len() - 1;
                let index = batch.max(1) - 1;
                if index <= last {
                    return values[index];
                }
                let slope = if last > 0 { (values[last] - values[last - 1]).max(0.0) } else { 0.0 };
                values[last] + slope * (index - last) as f64
            }
        }
    }
}

impl<'de> Deserialize<'de> for LatencyProfile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ProfileVisitor;
        impl<'de> Visitor<'de> for ProfileVisitor {
            type Value = LatencyProfile;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("milliseconds, or a list of milliseconds by batch size")
            }
            fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
                Ok(LatencyProfile::Constant(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
                Ok(LatencyProfile::Constant(value as f64))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
                Ok(LatencyProfile::Constant(value as f64))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = seq.next_element::<f64>()? {
                    values.push(value);
                }
                Ok(LatencyProfile::Table(values))
            }
        }
        deserializer.deserialize_any(ProfileVisitor)
    }
}

/// The computation of an emulated model, without the time it takes.
#[derive(Debug)]
pub struct EmulatedModel {
    profile: LatencyProfile,
    prefill_ms_per_token: f64,
    vocab: u32,
    block_size: usize,
    /// Hash of the whole prefix, per position of every block.
    kv: Vec<u64>,
}

impl EmulatedModel {
    /// A model with `blocks * block_size` KV positions.
    pub fn new(profile: LatencyProfile, vocab: u32, blocks: usize, block_size: usize) -> Self {
        Self { profile, prefill_ms_per_token: 0.0, vocab, block_size, kv: vec![0; blocks * block_size] }
    }

    /// The same with a cost for every new token beyond the first of a row.
    #[must_use]
    pub fn with_prefill(mut self, ms_per_token: f64) -> Self {
        self.prefill_ms_per_token = ms_per_token;
        self
    }

    /// Time of a step with this batch.
    pub fn latency(&self, batch: &Batch) -> Duration {
        let rows = batch.rows().len();
        let prefill = self.prefill_ms_per_token * batch.total_tokens().saturating_sub(rows) as f64;
        Duration::from_secs_f64((self.profile.at(rows) + prefill) / 1e3)
    }

    /// The outputs of a step: all signals that an emulated model has, whatever was asked for. The entropy is uniform
    /// between 0 and 1; the largest logits fall evenly, with the steepness that a uniform draw gives.
    pub fn compute(&mut self, batch: &Batch, output: &mut StepOutput) {
        output.clear();
        for (from, to) in batch.copies() {
            let from = *from as usize * self.block_size;
            self.kv.copy_within(from..from + self.block_size, *to as usize * self.block_size);
        }
        for row in batch.rows() {
            let blocks = batch.blocks(row);
            let slot = |position: usize| {
                blocks[position / self.block_size] as usize * self.block_size + position % self.block_size
            };
            let mut hash = if row.start == 0 { 0 } else { self.kv[slot(row.start - 1)] };
            for (token, position) in batch.tokens(row).iter().zip(row.start..) {
                hash = draw_u64(hash, u64::from(*token), position as u64, Purpose::EmulatedToken);
                self.kv[slot(position)] = hash;
            }
            if row.sample {
                let unit = draw_unit(hash, 0, 0, Purpose::Sample) as f32;
                output.tokens.push((hash % u64::from(self.vocab)) as u32);
                output.softmax.push(Softmax { entropy: unit, log_sum_exp: 12.0 });
                output.top.extend((0..TOP).map(|rank| (10.0 - 4.0 * unit * rank as f32, rank)));
            }
        }
    }
}

/// Without the time, for tests and reference loops.
impl ModelRunner for EmulatedModel {
    fn forward(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), RunnerError> {
        self.compute(batch, output);
        Ok(())
    }
}
