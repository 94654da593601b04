//! What tests of several crates share. A development dependency only.

pub mod candle_oracle;
pub mod tiny;
