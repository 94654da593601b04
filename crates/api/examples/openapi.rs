//! Prints the OpenAPI document: `cargo run -p tokenrouter-api --example openapi > openapi.json`.

use tokenrouter_api::openapi::{Operation, document};

#[allow(clippy::print_stdout)]
fn main() {
    println!("{:#}", document(&Operation::ALL, env!("CARGO_PKG_VERSION")));
}
