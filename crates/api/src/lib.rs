//! The HTTP API as types: what clients send, what the server answers, and the OpenAPI document of both.
//!
//! The server, `trbench`'s client and the tests share them. They know nothing of the engine, so that a client depends on
//! serde and schemars only. One module holds one API; [`sampling`] and [`usage`] hold what several have in common.
//!
//! The server reads a request with [`read`], which refuses unknown fields by name; answers are plain serde types. Answers
//! are read leniently: what another server leaves out has its default.

mod body;
pub mod chat;
pub mod completions;
pub mod error;
pub mod generate;
mod lists;
pub mod models;
pub mod openapi;
mod place;
pub mod sampling;
pub mod status;
pub mod tokenize;
pub mod usage;

pub use body::{Body, read, to_json};
pub use lists::{Only, Seed, Texts, TokenIds, TopK};
pub use place::{FieldError, Problem};
