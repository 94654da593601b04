//! Learned heads as routing sees them: something that scores the rows of a step. The networks themselves live beside the
//! kernels that compute them.

use std::any::Any;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use crate::step::StepOutput;

/// What kind of network a head is.
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

/// A head that has been loaded.
pub trait Head: Any + Debug + Send + Sync {
    /// What it is.
    fn kind(&self) -> HeadKind;

    /// What it takes of a row.
    fn sizes(&self) -> HeadSizes;

    /// The threshold that its file recommends, a score in `0..=1`.
    fn threshold(&self) -> Option<f64>;

    /// Replaces `scores` by one score in `0..=1` per row of `output`. A row's score depends on that row alone, to the
    /// last bit. The message says which signal does not fit.
    fn score(&self, output: &StepOutput, scores: &mut Vec<f32>) -> Result<(), String>;
}

/// Reads a head from a file; the message names the file and what is wrong.
pub type LoadHead = fn(&Path) -> Result<Arc<dyn Head>, String>;

/// The loader of a system without heads.
pub(super) fn no_heads(path: &Path) -> Result<Arc<dyn Head>, String> {
    Err(format!("`{}`: this system reads no head files", path.display()))
}
