//! Mistakes on purpose. The simulation must notice each of them: a check that nothing can fail checks nothing.

use std::str::FromStr;

use super::core::Core;

/// A mistake in the scheduler. Compiled in only for tests and with the feature `mutations`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A request that is cancelled keeps its first KV block.
    LeakOnCancel,
    /// A request that comes back is not put into the buffer.
    ForgetReturn,
    /// A handoff leaves out its first new token.
    ShortDelta,
    /// The entry model does not tell the others that a request has ended.
    ForgetClose,
    /// The end of a request is reported twice.
    FinishTwice,
    /// A committed token is not sent to the client.
    SwallowToken,
    /// A request that goes to a peer is put into the buffer here as well.
    KeepAfterHandoff,
    /// Requests of a lost peer are not ended.
    IgnoreLoss,
    /// The number of active requests is not lowered when a request ends.
    StaleActiveCount,
    /// Thresholds stay as they are when fewer requests are active.
    UnclampedThresholds,
    /// A message that arrives twice is handled twice.
    AcceptDuplicates,
    /// Random routing depends on the row of the batch instead of the request.
    RouteByRow,
}

impl Mutation {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 12] = [
        ("leak-on-cancel", Self::LeakOnCancel),
        ("forget-return", Self::ForgetReturn),
        ("short-delta", Self::ShortDelta),
        ("forget-close", Self::ForgetClose),
        ("finish-twice", Self::FinishTwice),
        ("swallow-token", Self::SwallowToken),
        ("keep-after-handoff", Self::KeepAfterHandoff),
        ("ignore-loss", Self::IgnoreLoss),
        ("stale-active-count", Self::StaleActiveCount),
        ("unclamped-thresholds", Self::UnclampedThresholds),
        ("accept-duplicates", Self::AcceptDuplicates),
        ("route-by-row", Self::RouteByRow),
    ];
}

impl FromStr for Mutation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(name, _)| *name == text);
        known.map(|(_, mutation)| *mutation).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("there is no mutation `{text}`; there are {}", names.join(", "))
        })
    }
}

impl Core {
    /// Makes a mistake from now on. Without effect unless compiled for tests or with the feature `mutations`.
    pub fn mutate(&mut self, mutation: Mutation) {
        self.mutation = Some(mutation);
    }

    pub(super) fn mutation(&self) -> Option<Mutation> {
        // A constant `None` in production: the checks vanish.
        if cfg!(any(test, feature = "mutations")) { self.mutation } else { None }
    }

    pub(super) fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation() == Some(mutation)
    }
}
