//! A latency profile in place of a model: the real scheduler without weights. Everything that comes out of it is to be
//! called "emulated".
//!
//! The emulated model does keep a KV cache, of one hash per position that stands for all tokens before it. Its tokens
//! are functions of that hash, so a wrong block table, a lost or doubled token or a stale position changes the output:
//! the tests of the scheduler live from this.

use std::time::{Duration, Instant};

use super::{ModelRunner, RowOutput, RunnerError};
use crate::config::LatencyProfile;
use crate::keyed::{Purpose, draw_u64, draw_unit};
use crate::routing::Signals;
use crate::scheduler::Batch;

/// The computation of an emulated model, without the time it takes.
#[derive(Debug)]
pub struct EmulatedModel {
    profile: LatencyProfile,
    vocab: u32,
    block_size: usize,
    /// Hash of the whole prefix, per position of every block.
    kv: Vec<u64>,
}

impl EmulatedModel {
    /// A model with `blocks * block_size` KV positions.
    pub fn new(profile: LatencyProfile, vocab: u32, blocks: usize, block_size: usize) -> Self {
        Self { profile, vocab, block_size, kv: vec![0; blocks * block_size] }
    }

    /// Time of a step with this batch.
    pub fn latency(&self, batch: &Batch) -> Duration {
        Duration::from_secs_f64(self.profile.at(batch.rows().len()) / 1e3)
    }

    /// The outputs of a step.
    pub fn compute(&mut self, batch: &Batch, outputs: &mut Vec<RowOutput>) {
        outputs.clear();
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
                let token = (hash % u64::from(self.vocab)) as u32;
                let entropy = draw_unit(hash, 0, 0, Purpose::Sample) as f32;
                outputs.push(RowOutput { token, signals: Signals { entropy } });
            }
        }
    }
}

/// An emulated model that takes its time.
#[derive(Debug)]
pub struct EmulatedRunner(pub EmulatedModel);

impl ModelRunner for EmulatedRunner {
    fn forward(&mut self, batch: &Batch, outputs: &mut Vec<RowOutput>) -> Result<(), RunnerError> {
        let end = Instant::now() + self.0.latency(batch);
        self.0.compute(batch, outputs);
        wait_until(end);
        Ok(())
    }
}

/// Sleeps for most of the time and spins for the last stretch, which the operating system's timer would miss.
fn wait_until(end: Instant) {
    const SPIN: Duration = Duration::from_micros(200);
    if let Some(rest) = end.checked_duration_since(Instant::now())
        && rest > SPIN
    {
        std::thread::sleep(rest - SPIN);
    }
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Without the time, for tests and reference loops.
impl ModelRunner for EmulatedModel {
    fn forward(&mut self, batch: &Batch, outputs: &mut Vec<RowOutput>) -> Result<(), RunnerError> {
        self.compute(batch, outputs);
        Ok(())
    }
}
