//! Marks over the real templates of [`super::super::jinja`]'s tests.

use aho_corasick::AhoCorasick;
use serde_json::Value;

use super::super::jinja::tests::{clock, difference, real};
use super::super::{ChatTemplate, Conversation};
use super::tests::codec;
use super::{Controls, Halves, Marks, rendered};

/// Whatever looks like a token in a template: `<` to `>` without space or quote between.
fn controls(template: &str) -> Controls {
    let mut tokens: Vec<(String, u32)> = Vec::new();
    for (at, _) in template.match_indices('<') {
        let Some(end) = template[at..].find('>') else { break };
        let token = &template[at..=at + end];
        let plain = |character: char| !character.is_whitespace() && !"{}'\"<".contains(character);
        if token.len() < 30 && token[1..].chars().all(plain) && !tokens.iter().any(|(known, _)| known == token) {
            tokens.push((token.to_owned(), 0));
        }
    }
    tokens.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    let finder = AhoCorasick::new(tokens.iter().map(|(token, _)| token)).expect("few patterns");
    let plain = (*codec("").tokenizer).clone();
    Controls {
        halves: Halves::of(tokens.iter().map(|(token, _)| token.as_str())),
        tokens,
        finder,
        plain: [plain.clone(), plain],
    }
}

#[test]
fn marks_change_nothing_but_the_marks() {
    let real = real();
    let (mut differences, mut marked) = (Vec::new(), 0);
    for given in &real.templates {
        let template = ChatTemplate::at(given.source.clone(), real.bos.clone(), real.eos.clone(), clock);
        let template = template.expect("compiles");
        let controls = controls(&given.source);
        for ((label, case), (_, want)) in real.conversations.iter().zip(&given.results) {
            let conversation = Conversation {
                messages: case["messages"].as_array().cloned().unwrap_or_default(),
                tools: case.get("tools").cloned(),
                variables: case.get("variables").and_then(Value::as_object).cloned().unwrap_or_default(),
            };
            let marks = Marks::new(&conversation).expect("free marks");
            let got = rendered(&template, &conversation, &marks, &controls).ok();
            marked += got.as_ref().map_or(0, |(_, count)| usize::from(*count > 0));
            let got = got.map(|(text, _)| text.replace([marks.token, marks.edge], ""));
            let want = want.map(|index| real.texts[index].as_str());
            if got.as_deref() != want {
                let what = got.zip(want).map_or("refused by one".into(), |(got, want)| difference(want, &got));
                differences.push(format!("{}, {label}: {what}", given.name));
            }
        }
    }
    assert!(marked > 300, "{marked} conversations with marks");
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}
