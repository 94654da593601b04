//! Minimal server
