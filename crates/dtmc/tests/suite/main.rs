//! Every claim of the crate against an oracle that shares no code with it.
#![allow(clippy::missing_panics_doc, missing_docs)]

mod brute;
mod certificate;
mod closed_forms;
mod export;
mod limits;
mod reference;
mod runs;
mod search;
mod serving;
mod simulation;
mod solvers;
mod support;
mod uncertainty;
