//! An emulated model in real time.

use std::time::{Duration, Instant};

use tokenrouter_core::emulated::EmulatedModel;
use tokenrouter_core::step::{Batch, ModelRunner, RunnerError, StepOutput};

/// An emulated model that takes its time.
#[derive(Debug)]
pub struct EmulatedRunner(pub EmulatedModel);

impl ModelRunner for EmulatedRunner {
    fn forward(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), RunnerError> {
        let end = Instant::now() + self.0.latency(batch);
        self.0.compute(batch, output);
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
