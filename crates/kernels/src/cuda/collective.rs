//! Sums over the ranks of a tensor-parallel model.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::driver::failed;
use super::memory::{Buffer, Device};
use crate::Error;

/// A rank that others wait for longer is gone.
const MEETING_TIMEOUT: Duration = Duration::from_secs(60);

/// Adds up what the ranks of a model computed, each a part of a sum.
pub trait Collective: Send {
    /// Replaces the first `count` numbers of `buffer` by their sum over all ranks, in order with the buffer's stream. All
    /// ranks call it alike.
    fn all_reduce(&self, buffer: &Buffer<f32>, count: usize) -> Result<(), Error>;

    /// Whether graphs can hold it.
    fn can_be_captured(&self) -> bool;

    /// This rank has failed: others that wait for it need not.
    fn abandon(&self) {}
}

/// What ranks join to become one model.
pub struct Group {
    members: Members,
}

enum Members {
    Alone,
    #[cfg(feature = "cuda")]
    Nccl(cudarc::nccl::Id, usize),
    InProcess(Mutex<Vec<Option<InProcess>>>),
}

impl Group {
    /// For one rank on each of these devices. GPUs need NCCL.
    pub fn new(devices: &[Device]) -> Result<Self, Error> {
        if devices.len() <= 1 {
            return Ok(Self { members: Members::Alone });
        }
        #[cfg(feature = "cuda")]
        if devices.iter().all(|device| device.gpu().is_some()) {
            let id = super::nccl::Nccl::group()?;
            return Ok(Self { members: Members::Nccl(id, devices.len()) });
        }
        let members = InProcess::new(devices.len(), MEETING_TIMEOUT).into_iter().map(Some).collect();
        Ok(Self { members: Members::InProcess(Mutex::new(members)) })
    }

    /// Joins as `rank`, which is on `device`. Waits for the others where that is how they meet: each needs a thread.
    pub fn join(&self, device: &Device, rank: usize) -> Result<Box<dyn Collective>, Error> {
        let _ = device;
        match &self.members {
            Members::Alone => Ok(Box::new(Alone)),
            #[cfg(feature = "cuda")]
            Members::Nccl(id, ranks) => {
                let gpu = device.gpu().ok_or_else(|| failed("tensor parallelism", "a rank has no GPU"))?;
                Ok(Box::new(super::nccl::Nccl::join(gpu, (rank, *ranks), *id)?))
            }
            Members::InProcess(members) => {
                let mut members = members.lock().unwrap_or_else(PoisonError::into_inner);
                let member = members.get_mut(rank).and_then(Option::take);
                member
                    .map(|member| Box::new(member) as _)
                    .ok_or_else(|| failed("tensor parallelism", "a rank joined twice"))
            }
        }
    }
}

/// A model on one device.
#[derive(Debug, Clone, Copy)]
pub struct Alone;

impl Collective for Alone {
    fn all_reduce(&self, _buffer: &Buffer<f32>, _count: usize) -> Result<(), Error> {
        Ok(())
    }

    fn can_be_captured(&self) -> bool {
        true
    }
}

/// Ranks that are threads of this process and sum on the host: works for any devices, and is slow.
#[derive(Debug)]
pub struct InProcess {
    rank: usize,
    meeting: Arc<Meeting>,
    timeout: Duration,
}

#[derive(Debug)]
struct Meeting {
    ranks: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By rank: sums are taken in this order, whoever comes first.
    parts: Vec<Vec<f32>>,
    sum: Vec<f32>,
    /// Ranks that have given their part, and that have taken the sum.
    arrived: usize,
    left: usize,
    /// A rank is gone: nobody must wait for it.
    broken: bool,
}

impl InProcess {
    /// One for each of `ranks` ranks. A rank that waits for the others longer than `timeout` gives up.
    pub fn new(ranks: usize, timeout: Duration) -> Vec<Self> {
        let state = Mutex::new(State { parts: vec![Vec::new(); ranks], ..State::default() });
        let meeting = Arc::new(Meeting { ranks, state, changed: Condvar::new() });
        (0..ranks).map(|rank| Self { rank, meeting: Arc::clone(&meeting), timeout }).collect()
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, Error> {
        let waiting = |state: &mut State| !state.broken && !ready(state);
        let result = self.meeting.changed.wait_timeout_while(state, self.timeout, waiting);
        let (mut state, _) = result.unwrap_or_else(PoisonError::into_inner);
        if state.broken || !ready(&state) {
            state.broken = true;
            self.meeting.changed.notify_all();
            return Err(failed("sum over ranks", "another rank is gone"));
        }
        Ok(state)
    }
}

impl Collective for InProcess {
    fn all_reduce(&self, buffer: &Buffer<f32>, count: usize) -> Result<(), Error> {
        let Meeting { ranks, state, changed } = &*self.meeting;
        let mut part = vec![0.0; count];
        buffer.read(0, &mut part)?;
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        // The sum before this one has been taken by everyone.
        let mut state = self.wait(state, |state| state.arrived < *ranks)?;
        state.parts[self.rank] = part;
        state.arrived += 1;
        if state.arrived == *ranks {
            let State { parts, sum, .. } = &mut *state;
            *sum = vec![0.0; count];
            for part in parts.iter() {
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            }
        }
        changed.notify_all();
        let mut state = self.wait(state, |state| state.arrived == *ranks)?;
        buffer.write(0, &state.sum)?;
        state.left += 1;
        if state.left == *ranks {
            (state.arrived, state.left) = (0, 0);
        }
        changed.notify_all();
        Ok(())
    }

    fn can_be_captured(&self) -> bool {
        false
    }

    fn abandon(&self) {
        let mut state = self.meeting.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.broken = true;
        self.meeting.changed.notify_all();
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.abandon();
    }
}
