//! Conversations as clients send them, turned into tokens so that what a user writes never becomes a special token.
//!
//! A chat template gives one text, in which the template's own `<|im_end|>` and one that a user typed look alike. Before
//! rendering, every special token in a text of the client gets a mark in front; after rendering, what is not marked is
//! the template's. The mark is a code point that no text of this conversation has.

use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use super::{TextCodec, TextError};

/// Unicode's noncharacters: no text that is exchanged has any reason to contain them.
const MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// A conversation and what its template is given besides.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// Messages: objects with `role` and `content`, and whatever else the template reads.
    pub messages: Vec<Value>,
    /// Tools that the template describes to the model.
    pub tools: Option<Value>,
    /// Further variables of the template.
    pub variables: Map<String, Value>,
}

impl TextCodec {
    /// Tokens of a conversation, up to where the assistant's turn begins. Special tokens come from the template only:
    /// written out in a message, in a tool or in a variable they are plain text.
    pub fn encode_conversation(&self, conversation: &Conversation) -> Result<Vec<u32>, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoChatTemplate)?;
        let special = self.special_tokens();
        let mut marked = conversation.clone();
        let mark = free_mark(&marked)?;
        let mut count = 0;
        for text in texts_of(&mut marked) {
            count += mark_special(text, &special, mark);
        }
        let rendered = template.render_conversation(&marked)?;
        if count == 0 {
            return self.encode_rendered(&rendered);
        }
        self.encode_marked(&rendered, &special, mark)
    }

    /// Templates write their own first token, so the tokenizer must not add another.
    fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoding = self.tokenizer.encode_fast(text, false);
        let encoding = encoding.map_err(|error| TextError::Tokenizer(error.to_string()))?;
        Ok(self.with_bos(encoding.get_ids().to_vec()))
    }

    fn encode_marked(&self, text: &str, special: &[(String, u32)], mark: char) -> Result<Vec<u32>, TextError> {
        let plain = self.plain();
        let (mut ids, mut rest, mut run) = (Vec::new(), text, String::new());
        let flush = |run: &mut String, ids: &mut Vec<u32>| -> Result<(), TextError> {
            let encoding = plain.encode_fast(run.as_str(), false);
            ids.extend_from_slice(encoding.map_err(|error| TextError::Tokenizer(error.to_string()))?.get_ids());
            run.clear();
            Ok(())
        };
        while let Some(character) = rest.chars().next() {
            if character == mark {
                rest = &rest[mark.len_utf8()..];
                let Some(first) = rest.chars().next() else { break };
                run.push(first);
                rest = &rest[first.len_utf8()..];
            } else if let Some((token, id)) = special.iter().find(|(token, _)| rest.starts_with(token.as_str())) {
                flush(&mut run, &mut ids)?;
                ids.push(*id);
                rest = &rest[token.len()..];
            } else {
                run.push(character);
                rest = &rest[character.len_utf8()..];
            }
        }
        flush(&mut run, &mut ids)?;
        Ok(self.with_bos(ids))
    }

    /// Special tokens with their ids, the longest first.
    fn special_tokens(&self) -> Vec<(String, u32)> {
        let added = self.tokenizer.get_added_tokens_decoder();
        let special = added.into_iter().filter(|(_, token)| token.special && !token.content.is_empty());
        let mut special: Vec<_> = special.map(|(id, token)| (token.content, id)).collect();
        special.sort_by_key(|(token, _)| std::cmp::Reverse(token.len()));
        special
    }

    /// The tokenizer that reads special tokens as plain text. Made when the first user writes one.
    fn plain(&self) -> &Tokenizer {
        self.plain.get_or_init(|| {
            let mut plain = (*self.tokenizer).clone();
            plain.set_encode_special_tokens(true);
            plain
        })
    }
}

/// A mark that no text of the conversation has.
fn free_mark(conversation: &Conversation) -> Result<char, TextError> {
    let mut copy = conversation.clone();
    let texts: Vec<&mut String> = texts_of(&mut copy);
    MARKS
        .into_iter()
        .find(|mark| !texts.iter().any(|text| text.contains(*mark)))
        .ok_or_else(|| TextError::Template("the messages use every noncharacter from U+FDD0 to U+FDEF".into()))
}

/// Puts the mark before every special token; returns how many.
fn mark_special(text: &mut String, special: &[(String, u32)], mark: char) -> usize {
    let starts: Vec<usize> = text
        .char_indices()
        .map(|(at, _)| at)
        .filter(|at| special.iter().any(|(token, _)| text[*at..].starts_with(token.as_str())))
        .collect();
    for at in starts.iter().rev() {
        text.insert(*at, mark);
    }
    starts.len()
}

/// Every text in it.
fn texts_of(conversation: &mut Conversation) -> Vec<&mut String> {
    let mut texts = Vec::new();
    let messages = conversation.messages.iter_mut();
    for value in messages.chain(conversation.tools.as_mut()).chain(conversation.variables.values_mut()) {
        collect(value, &mut texts);
    }
    texts
}

fn collect<'a>(value: &'a mut Value, texts: &mut Vec<&'a mut String>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(values) => values.iter_mut().for_each(|value| collect(value, texts)),
        Value::Object(fields) => fields.values_mut().for_each(|value| collect(value, texts)),
        _ => {}
    }
}
