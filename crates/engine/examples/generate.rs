//! Routes one prompt between the two demo models and prints every token with the model that wrote it.
//!
//! `cargo run --release -p tokenrouter-engine --example generate` (after `trbench models fetch demo`)

use tokenrouter_core::{Request, SamplingParams};
use tokenrouter_engine::{Config, Engine};

#[allow(clippy::print_stdout, reason = "the output of this program")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::launch(&Config::from_file("config/rstitch/demo.yaml")?)?;
    let text = engine.text().ok_or("emulated models write no text")?;
    let prompt = text.encode("The three primary colours are")?;
    let sampling = SamplingParams { max_tokens: 24, ..SamplingParams::default() };
    let (tokens, reason, stats) = engine.generate(Request::new(prompt, sampling, 0))?.collect_blocking();
    for token in &tokens {
        println!("{:>6}  {:?}", engine.model_names()[token.origin], text.decode(&[token.id])?);
    }
    println!("{}, {} handoffs, tokens by model {:?}", reason.as_str(), stats.handoffs, stats.tokens_by_model);
    Ok(())
}
