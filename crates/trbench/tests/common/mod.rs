//! The command as tests call it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A configuration of emulated models.
pub(crate) const EMULATED: &str = "config/random/emulated.yaml";

/// Runs the command in the root of the repository.
pub(crate) fn trbench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trbench"));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    command.args(args).stdin(Stdio::null()).output().expect("the binary starts")
}

/// What it has written.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
