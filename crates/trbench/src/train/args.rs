//! Arguments of `trbench train-router`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tokenrouter_core::routing::HeadKind;

use crate::error::usage;
use crate::offline::Output;

/// Which head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// R2R's classifier, for `method: r2r`.
    R2r,
    /// CITER's confidence network, for `method: citer`.
    Citer,
    /// Co-LLM's deferral row, for `method: collm`.
    Collm,
}

/// Arguments of `trbench train-router`.
#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// Configuration that names the pair: its entry model is the small one.
    #[arg(long, short)]
    pub(super) config: PathBuf,
    /// The large model, where the configuration has more than two.
    #[arg(long)]
    pub(super) large: Option<String>,
    /// The head to train; several, divided by commas, learn from the same samples.
    #[arg(long, required = true, value_delimiter = ',')]
    pub(super) kind: Vec<Kind>,
    /// Text files whose documents (separated by blank lines) give prompts. Default: the text and the problems that ship with
    /// the project.
    #[arg(long, num_args = 1..)]
    pub(super) text: Vec<PathBuf>,
    /// Tokens that the large model writes.
    #[arg(long, default_value_t = 40_000)]
    pub(super) tokens: usize,
    /// Most tokens of one answer.
    #[arg(long, default_value_t = 192)]
    pub(super) length: usize,
    /// Temperature of what the large model writes; 0 is greedy.
    #[arg(long, default_value_t = 0.7)]
    pub(super) temperature: f32,
    /// A difference is no divergence when the small model's token is among this many most likely ones of the large model
    /// and at least `--neutral-ratio` times as likely as the first.
    #[arg(long)]
    pub(super) neutral_top: Option<usize>,
    /// See `--neutral-top`.
    #[arg(long, default_value_t = 0.5, requires = "neutral_top")]
    pub(super) neutral_ratio: f32,
    /// Width of the head's hidden layers (r2r, citer).
    #[arg(long, default_value_t = 32)]
    pub(super) hidden: usize,
    /// Residual blocks (r2r).
    #[arg(long, default_value_t = 1)]
    pub(super) blocks: usize,
    /// Most passes over the samples.
    #[arg(long, default_value_t = 40)]
    pub(super) epochs: usize,
    /// Samples per update.
    #[arg(long, default_value_t = 256)]
    pub(super) batch: usize,
    /// Learning rate of AdamW.
    #[arg(long, default_value_t = 1e-3)]
    pub(super) lr: f64,
    /// Weight decay of AdamW.
    #[arg(long, default_value_t = 0.1)]
    pub(super) weight_decay: f64,
    /// Share of the hidden state and of the embedding that is left out in every update, against overfitting.
    #[arg(long, default_value_t = 0.6)]
    pub(super) dropout: f64,
    /// Seed of the text, the split, the initial weights and the order of samples.
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// The recommended threshold is to send this share of tokens to the large model.
    #[arg(long, default_value_t = 0.2)]
    pub(super) share: f64,
    /// The recommended threshold is to send this share of the divergent tokens to the large model, instead of `--share`.
    #[arg(long, conflicts_with = "share")]
    pub(super) recall: Option<f64>,
    /// Threads of the models; 0: all cores.
    #[arg(long, default_value_t = 0)]
    pub(super) threads: usize,
    /// The head file to write; `{kind}` in it stands for the kind.
    #[arg(long, short, value_name = "SAFETENSORS")]
    pub(super) out: String,
    /// Format of the report.
    #[arg(long, default_value = "table")]
    pub(super) output: Output,
}

impl Kind {
    pub(super) fn head(self) -> HeadKind {
        match self {
            Self::R2r => HeadKind::R2rMlp,
            Self::Citer => HeadKind::CiterMlp,
            Self::Collm => HeadKind::DeferralRow,
        }
    }

    /// The routing method that reads it.
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::R2r => "r2r",
            Self::Citer => "citer",
            Self::Collm => "collm",
        }
    }

    /// The sign that makes a score a hardness: CITER's says how easy a token is.
    pub(super) fn sign(self) -> f32 {
        if self == Self::Citer { -1.0 } else { 1.0 }
    }

    pub(super) fn rule(self) -> &'static str {
        match self {
            Self::R2r => "score >= threshold",
            Self::Citer => "score < threshold",
            Self::Collm => "score > threshold",
        }
    }
}

impl TrainArgs {
    /// The file of a head.
    pub(super) fn target(&self, kind: Kind) -> PathBuf {
        PathBuf::from(self.out.replace("{kind}", kind.method()))
    }

    /// Refuses values that are out of range, and files that cannot be written.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let sizes = [
            ("--tokens", self.tokens),
            ("--length", self.length),
            ("--hidden", self.hidden),
            ("--blocks", self.blocks),
            ("--epochs", self.epochs),
            ("--batch", self.batch),
            ("--neutral-top", self.neutral_top.unwrap_or(1)),
        ];
        for (name, value) in sizes {
            if value == 0 {
                return Err(usage(format!("{name} 0 is not allowed, allowed is 1 or more")));
            }
        }
        let above_zero = |value: f64| value.is_finite() && value > 0.0;
        let part = |value: f64| value > 0.0 && value < 1.0;
        for (name, value, good, allowed) in [
            (
                "--temperature",
                f64::from(self.temperature),
                self.temperature >= 0.0 && self.temperature.is_finite(),
                "0 or more",
            ),
            ("--lr", self.lr, above_zero(self.lr), "above 0"),
            (
                "--weight-decay",
                self.weight_decay,
                self.weight_decay == 0.0 || above_zero(self.weight_decay),
                "0 or more",
            ),
            ("--dropout", self.dropout, (0.0..1.0).contains(&self.dropout), "0 or more and below 1"),
            ("--neutral-ratio", f64::from(self.neutral_ratio), part(self.neutral_ratio.into()), "above 0 and below 1"),
            ("--share", self.share, part(self.share), "above 0 and below 1"),
            ("--recall", self.recall.unwrap_or(0.5), part(self.recall.unwrap_or(0.5)), "above 0 and below 1"),
        ] {
            if !good {
                return Err(usage(format!("{name} {value} is not allowed, allowed is {allowed}")));
            }
        }
        if self.kind.len() > 1 && !self.out.contains("{kind}") {
            return Err(usage(format!("--out `{}` is one file for several heads, put `{{kind}}` into it", self.out)));
        }
        self.kind.iter().try_for_each(|kind| crate::offline::check_target(&self.target(*kind)))
    }
}
