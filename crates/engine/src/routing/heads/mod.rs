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

use std::path::Path;

pub use citer::CiterHead;
pub use deferral::DeferralRow;
pub use error::{HeadError, HeadProblem};
pub use file::{About, HeadFile, HeadTensor, HeadValues};
pub use r2r::{R2rHead, R2rInputs};

/// What a head is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadKind {
    /// R2R's classifier on hidden state, candidate embedding and largest logits.
    R2rMlp,
    /// CITER's confidence network on the hidden state.
    CiterMlp,
    /// Co-LLM's extra row of the output matrix.
    DeferralRow,
}

impl HeadKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::R2rMlp, Self::CiterMlp, Self::DeferralRow];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::R2rMlp => "r2r_mlp",
            Self::CiterMlp => "citer_mlp",
            Self::DeferralRow => "deferral_row",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Widths of a head's inputs, as its tensors say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadSizes {
    /// Width of the model's last hidden state, after the final norm.
    pub hidden: usize,
    /// Width of the candidate's input embedding; `None` when the head does not look at it.
    pub embedding: Option<usize>,
    /// How many of the largest raw logits it takes, falling; `None` when it takes none.
    pub top_logits: Option<usize>,
    /// Whether it normalises its inputs itself.
    pub normalize_input: bool,
}

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
            Self::Citer(head) => HeadSizes::of_hidden(head.hidden_size()),
            Self::Deferral(head) => HeadSizes::of_hidden(head.hidden_size()),
        }
    }
}

impl HeadSizes {
    /// Sizes of a head that takes the hidden state alone.
    fn of_hidden(hidden: usize) -> Self {
        Self { hidden, embedding: None, top_logits: None, normalize_input: false }
    }
}
