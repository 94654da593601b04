//! What tests of several crates share. A development dependency only.

pub mod tiny;
