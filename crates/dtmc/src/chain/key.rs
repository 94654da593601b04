//! Packed states: one integer holds the clock of every model and the counts of every routing state.
//!
//! Fields from the most significant bit: the *clock* of every model, slowest model first, then running counts, then
//! waiting counts, per routing state. A clock is `largest step - remaining` while the model runs and `largest step`
//! when it is idle. Time therefore only raises clocks, and sorting states by key lays the chain out in time: a transition
//! goes to a smaller key only when the slowest busy models launch again. The stationary solver lives on that order.

use crate::{ClosedSystem, Error};
use std::hash::Hash;
use std::ops::{Add, BitAnd, BitOr, Not, Shl, Shr, Sub};

/// An unsigned integer wide enough for a packed state.
pub(crate) trait Key:
    Copy
    + Ord
    + Hash
    + Send
    + Sync
    + Default
    + std::fmt::Debug
    + Add<Output = Self>
    + Sub<Output = Self>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + Not<Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
    + 'static
{
    /// Widens a small number.
    fn from_u32(value: u32) -> Self;
    /// The low 32 bits.
    fn low_u32(self) -> u32;
    /// A well mixed hash.
    fn mix(self) -> u64;
}

fn mix64(value: u64) -> u64 {
    let folded = u128::from(value ^ 0x9E37_79B9_7F4A_7C15) * 0xD1B5_4A32_D192_ED03_u128;
    (folded as u64) ^ ((folded >> 64) as u64)
}

impl Key for u64 {
    fn from_u32(value: u32) -> Self {
        Self::from(value)
    }
    fn low_u32(self) -> u32 {
        self as u32
    }
    fn mix(self) -> u64 {
        mix64(self)
    }
}

impl Key for u128 {
    fn from_u32(value: u32) -> Self {
        Self::from(value)
    }
    fn low_u32(self) -> u32 {
        self as u32
    }
    fn mix(self) -> u64 {
        mix64(self as u64 ^ mix64((self >> 64) as u64))
    }
}

/// Position and width of one field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) shift: u32,
    pub(crate) mask: u32,
}

impl Field {
    #[inline]
    pub(crate) fn get<K: Key>(self, key: K) -> u32 {
        (key >> self.shift).low_u32() & self.mask
    }

    #[inline]
    pub(crate) fn place<K: Key>(self, value: u32) -> K {
        K::from_u32(value) << self.shift
    }
}

/// Where every field of a packed state lies. Depends on the system only, not on thresholds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Clock of every model.
    pub(crate) clock: Vec<Field>,
    /// Value of the clock when idle: the largest step in quanta.
    pub(crate) idle: Vec<u32>,
    /// Running count of every routing state.
    pub(crate) running: Vec<Field>,
    /// Waiting count of every routing state.
    pub(crate) waiting: Vec<Field>,
    /// Total bits used.
    pub(crate) bits: u32,
}

impl Layout {
    pub(crate) fn new(system: &ClosedSystem) -> Result<Self, Error> {
        let count_bits = 32 - system.concurrency().leading_zeros();
        let idle: Vec<u32> = (0..system.models()).map(|index| system.largest_quanta(index)).collect();
        let mut layout = Self {
            clock: vec![Field::default(); system.models()],
            running: vec![Field::default(); system.routing_states()],
            waiting: vec![Field::default(); system.routing_states()],
            idle,
            bits: 0,
        };
        let mut shift = 0;
        let mut field = |bits: u32| {
            let placed = Field { shift, mask: ((1_u64 << bits) - 1) as u32 };
            shift += bits;
            placed
        };
        layout.waiting.iter_mut().for_each(|slot| *slot = field(count_bits));
        layout.running.iter_mut().for_each(|slot| *slot = field(count_bits));
        for index in system.slowest_first().into_iter().rev() {
            layout.clock[index] = field(32 - layout.idle[index].leading_zeros());
        }
        layout.bits = shift;
        if layout.bits > u128::BITS {
            let problem = format!("{} bits per state", layout.bits);
            return Err(Error::system("state", problem, "at most 128 bits: fewer requests, states or quanta"));
        }
        Ok(layout)
    }

    /// The counts and remaining times behind a key.
    pub(crate) fn decode<K: Key>(&self, key: K) -> StateView {
        StateView {
            waiting: self.waiting.iter().map(|field| field.get(key)).collect(),
            running: self.running.iter().map(|field| field.get(key)).collect(),
            remaining: self.clock.iter().zip(&self.idle).map(|(field, idle)| idle - field.get(key)).collect(),
        }
    }
}

/// One state of the chain, readable.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct StateView {
    /// Requests waiting, per routing state.
    pub waiting: Vec<u32>,
    /// Requests in the running batch, per routing state.
    pub running: Vec<u32>,
    /// Quanta until the running batch of every model ends; 0 when idle.
    pub remaining: Vec<u32>,
}

impl std::fmt::Display for StateView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "waiting {:?}, running {:?}, remaining {:?}", self.waiting, self.running, self.remaining)
    }
}
