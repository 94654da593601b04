//! Whether the answers have room: a run whose requests would be cut short by memory measures something else than asked for.

use tokenrouter_engine::Engine;
use tokenrouter_engine::tokenizer::TextCodec;

use super::cell::Cell;
use super::reply::{render, tokens};
use crate::dataset::Item;
use crate::error::usage;
use crate::spec::{RunSpec, System};

/// Tokens that a tokenizer may add to a text; each of its others takes at least one byte.
const ADDED: usize = 16;

/// Checks every prompt with `--max-tokens` against every system.
pub(super) fn check(spec: &RunSpec, cells: &[Cell], items: &[Item]) -> anyhow::Result<()> {
    let mut checked: Vec<&System> = Vec::new();
    for cell in cells {
        // The number of requests in flight does not change how long one of them may be.
        let (Some(config), Some(system)) = (&cell.config, cell.spec.system.first()) else { continue };
        if checked.contains(&system) {
            continue;
        }
        checked.push(system);
        let capacity = Engine::capacity(config)?;
        let longest = longest(capacity.text.as_ref(), items, capacity.token_limit.saturating_sub(spec.max_tokens()))?;
        if let Some((item, prompt)) = longest {
            return Err(refusal(spec, &cell.label, (item, prompt), capacity.token_limit));
        }
    }
    Ok(())
}

/// The longest prompt that has more than `room` tokens, and its length.
fn longest<'a>(text: Option<&TextCodec>, items: &'a [Item], room: usize) -> anyhow::Result<Option<(&'a Item, usize)>> {
    let mut found: Option<(&Item, usize)> = None;
    for item in items {
        let messages = item.prompt.messages();
        let least = found.map_or(room, |(_, length)| length);
        if render(text, messages)?.len() + ADDED <= least {
            continue;
        }
        let length = tokens(text, messages)?.len();
        if length > least {
            found = Some((item, length));
        }
    }
    Ok(found)
}

fn refusal(spec: &RunSpec, label: &str, (item, prompt): (&Item, usize), limit: usize) -> anyhow::Error {
    let (answer, turn) = (spec.max_tokens(), item.turn);
    let of = if turn > 1 { format!("`{}`, turn {turn},", item.id) } else { format!("`{}`", item.id) };
    let fits = match limit.saturating_sub(prompt) {
        0 => "the prompt alone does not fit".to_owned(),
        most => format!("--max-tokens {most} fits"),
    };
    usage(format!(
        "{label}: prompt {of} has {prompt} tokens and --max-tokens is {answer}, together {}; a request may have {limit} \
         (the models' contexts, `kv.memory_mib`, `system.max_tokens_per_request`): {fits}",
        prompt + answer
    ))
}
