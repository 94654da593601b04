//! Scoring heads of learned routers: small networks on a model's hidden state that say how much the next token needs the
//! large model. A head scores rows and knows nothing of requests or policies.
//!
//! | head | from | score | a token goes to the large model when |
//! |---|---|---|---|
//! | [`R2rHead`] | R2R | probability that the candidate diverges | `score >= threshold` |
//! | [`CiterHead`] | CITER | confidence that the small model suffices | `score < threshold` |
//! | [`DeferralRow`] | Co-LLM | probability of deferring | `score > threshold` |
//!
//! Heads come from files of one form ([`HeadFile`], `docs/reference/router-weights.md`), written by
//! `trbench convert-router` or by a trainer. A row's score depends on that row alone, to the last bit.

mod citer;
mod deferral;
mod error;
mod file;
mod layers;
mod r2r;

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokenrouter_core::routing;
use tokenrouter_core::routing::{HeadKind, HeadSizes};
use tokenrouter_core::step::StepOutput;

pub use citer::CiterHead;
pub use deferral::DeferralRow;
pub use error::{HeadError, HeadProblem};
pub use file::{About, HeadFile, HeadTensor, HeadValues};
pub use r2r::{R2rHead, R2rInputs};

/// A head of any kind.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a process has a few heads, and they are not moved about")]
pub enum Head {
    /// See [`HeadKind::R2rMlp`].
    R2r(R2rHead),
    /// See [`HeadKind::CiterMlp`].
    Citer(CiterHead),
    /// See [`HeadKind::DeferralRow`].
    Deferral(DeferralRow),
}

impl Head {
    /// Reads a head from a file.
    pub fn load(path: &Path) -> Result<Self, HeadError> {
        Self::new(&HeadFile::read(path)?)
            .map_err(|problem| HeadError::File { path: path.to_owned(), problem: Box::new(problem) })
    }

    /// Builds a head from the contents of a file.
    pub fn new(file: &HeadFile) -> Result<Self, HeadProblem> {
        Ok(match file.kind {
            HeadKind::R2rMlp => Self::R2r(R2rHead::new(file)?),
            HeadKind::CiterMlp => Self::Citer(CiterHead::new(file)?),
            HeadKind::DeferralRow => Self::Deferral(DeferralRow::new(file)?),
        })
    }

    /// As routing policies hold it.
    pub fn for_routing(self) -> Arc<dyn routing::Head> {
        Arc::new(LoadedHead { head: self, logits: Mutex::default() })
    }

    /// What it is.
    pub fn kind(&self) -> HeadKind {
        match self {
            Self::R2r(_) => HeadKind::R2rMlp,
            Self::Citer(_) => HeadKind::CiterMlp,
            Self::Deferral(_) => HeadKind::DeferralRow,
        }
    }

    /// Its weights in the form that devices take.
    pub fn to_host(&self) -> Result<tokenrouter_kernels::cuda::HostHead, tokenrouter_kernels::Error> {
        match self {
            Self::R2r(head) => head.to_host(),
            Self::Citer(head) => head.to_host(),
            Self::Deferral(head) => head.to_host(),
        }
    }

    /// The threshold that the file recommends, a score in `0..=1`.
    pub fn threshold(&self) -> Option<f64> {
        match self {
            Self::R2r(head) => head.threshold(),
            Self::Citer(head) => head.threshold(),
            Self::Deferral(head) => head.threshold(),
        }
    }

    /// What it takes of a row.
    pub fn sizes(&self) -> HeadSizes {
        match self {
            Self::R2r(head) => head.sizes(),
            Self::Citer(head) => sizes_of_hidden(head.hidden_size()),
            Self::Deferral(head) => sizes_of_hidden(head.hidden_size()),
        }
    }
}

/// Sizes of a head that takes the hidden state alone.
fn sizes_of_hidden(hidden: usize) -> HeadSizes {
    HeadSizes { hidden, embedding: None, top_logits: None, normalize_input: false }
}

/// The loader that systems with heads use ([`routing::LoadHead`]).
pub fn load(path: &Path) -> Result<Arc<dyn routing::Head>, String> {
    Head::load(path).map(Head::for_routing).map_err(|error| error.to_string())
}

/// A head as policies hold it, with a buffer that is reused from step to step: only the small model's subserver scores,
/// so the lock is never contended.
#[derive(Debug)]
pub(crate) struct LoadedHead {
    head: Head,
    logits: Mutex<Vec<f32>>,
}

impl LoadedHead {
    /// The head behind a policy's, when it was loaded here.
    pub(crate) fn of(head: &dyn routing::Head) -> Option<&Head> {
        (head as &dyn Any).downcast_ref::<Self>().map(|loaded| &loaded.head)
    }
}

impl routing::Head for LoadedHead {
    fn kind(&self) -> HeadKind {
        self.head.kind()
    }

    fn sizes(&self) -> HeadSizes {
        self.head.sizes()
    }

    fn threshold(&self) -> Option<f64> {
        self.head.threshold()
    }

    fn score(&self, output: &StepOutput, scores: &mut Vec<f32>) -> Result<(), String> {
        let result = match &self.head {
            Head::R2r(head) => {
                let mut logits = self.logits.lock().unwrap_or_else(PoisonError::into_inner);
                logits.clear();
                logits.extend(output.top.iter().map(|(logit, _)| logit));
                let inputs = R2rInputs { hidden: &output.hidden, embedding: &output.embedding, logits: &logits };
                head.score(&inputs, scores)
            }
            Head::Citer(head) => head.score(&output.hidden, scores),
            Head::Deferral(head) => head.score(&output.hidden, scores),
        };
        result.map_err(|error| error.to_string())
    }
}
