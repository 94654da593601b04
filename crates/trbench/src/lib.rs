//! trbench
