//! Conversations as clients send them, turned into tokens so that nothing that a client writes becomes a token that the
//! template writes.
//!
//! A chat template gives one text, in which the template's own `<|im_end|>` and one that a user typed look alike. Before
//! rendering, every such token in a text of the client, or in a name of a field, gets a mark in front; after rendering,
//! what is not marked is the template's. A text of the client that could be one half of a token, whose other half the
//! template writes, gets a second mark at that end, over which no token reaches. Both marks are code points that no text of
//! this conversation has.

use std::borrow::Cow;
use std::collections::HashSet;

use aho_corasick::AhoCorasick;
use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use super::jinja::{MARKS, edge_of};
use super::messages::forms;
use super::{ChatTemplate, TextCodec, TextError};

/// Roles that templates may make a token of, as in `<|user|>`.
const ROLES: [&str; 8] = ["system", "developer", "user", "assistant", "tool", "function", "ipython", "observation"];

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

/// What stands for tokens of the template, and finds them.
pub(super) struct Controls {
    /// Texts and ids, the longest first.
    tokens: Vec<(String, u32)>,
    finder: AhoCorasick,
    /// What is left of a token that is cut in two.
    halves: Halves,
    /// The tokenizer that reads them as plain text: at the start of a text, and after it.
    plain: [Tokenizer; 2],
}

impl std::fmt::Debug for Controls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controls").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

impl Controls {
    /// Special tokens, and other added tokens that the template's source has.
    pub(super) fn new(tokenizer: &Tokenizer, template: &str) -> Result<Self, TextError> {
        let added = tokenizer.get_added_tokens_decoder();
        let controls = added.into_iter().filter(|(_, token)| {
            !token.content.is_empty() && (token.special || template.contains(token.content.as_str()))
        });
        let mut tokens: Vec<_> = controls.map(|(id, token)| (token.content, id)).collect();
        tokens.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        let finder = AhoCorasick::new(tokens.iter().map(|(token, _)| token)).map_err(refused)?;
        let plain = [without(tokenizer, &tokens, false)?, without(tokenizer, &tokens, true)?];
        Ok(Self { halves: Halves::of(tokens.iter().map(|(token, _)| token.as_str())), tokens, finder, plain })
    }

    /// Bytes at which one of the tokens starts, rising.
    fn starts(&self, text: &str) -> Vec<usize> {
        let mut starts: Vec<usize> = self.finder.find_overlapping_iter(text).map(|found| found.start()).collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    }
}

/// Beginnings and ends of tokens.
#[derive(Default)]
struct Halves {
    first: HashSet<String>,
    second: HashSet<String>,
    /// Bytes of the longest.
    longest: usize,
}

impl Halves {
    fn of<'t>(tokens: impl Iterator<Item = &'t str>) -> Self {
        let mut halves = Self::default();
        for token in tokens {
            halves.longest = halves.longest.max(token.len());
            for (at, _) in token.char_indices().skip(1) {
                halves.first.insert(token[..at].to_owned());
                halves.second.insert(token[at..].to_owned());
            }
        }
        halves
    }

    /// Whether a token could begin in this text and end in what follows it.
    fn begins_at_end(&self, text: &str) -> bool {
        let ends = text.char_indices().rev().map(|(at, _)| &text[at..]);
        ends.take_while(|end| end.len() <= self.longest).any(|end| self.first.contains(end))
    }

    /// Whether a token could begin before this text and end in it.
    fn ends_at_start(&self, text: &str) -> bool {
        let starts = text.char_indices().map(|(at, character)| &text[..at + character.len_utf8()]);
        starts.take_while(|start| start.len() <= self.longest).any(|start| self.second.contains(start))
    }
}

fn refused(error: impl std::fmt::Display) -> TextError {
    TextError::Tokenizer(error.to_string())
}

/// The tokenizer without these added tokens. In the middle of a text it puts no space in front of the first word.
fn without(tokenizer: &Tokenizer, tokens: &[(String, u32)], middle: bool) -> Result<Tokenizer, TextError> {
    let mut json: Value = serde_json::from_str(&tokenizer.to_string(false).map_err(refused)?).map_err(refused)?;
    if let Some(Value::Array(added)) = json.get_mut("added_tokens") {
        added.retain(|token| !tokens.iter().any(|(content, _)| token["content"] == content.as_str()));
    }
    if middle {
        for key in ["normalizer", "pre_tokenizer"] {
            never_prepend(&mut json[key]);
        }
    }
    let mut plain: Tokenizer = serde_json::from_value(json).map_err(refused)?;
    plain.set_encode_special_tokens(true);
    Ok(plain)
}

/// Metaspace with `prepend_scheme: first` counts what follows a token as the middle of a text.
fn never_prepend(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            if fields.get("prepend_scheme").and_then(Value::as_str) == Some("first") {
                fields.insert("prepend_scheme".into(), "never".into());
            }
            fields.values_mut().for_each(never_prepend);
        }
        Value::Array(parts) => parts.iter_mut().for_each(never_prepend),
        _ => {}
    }
}

impl TextCodec {
    /// Tokens of a conversation, up to where the assistant's turn begins. Tokens that the template writes come from the
    /// template only: written out in a message, in a tool or in a variable they are plain text.
    pub fn encode_conversation(&self, conversation: &Conversation) -> Result<Vec<u32>, TextError> {
        self.encode_conversation_within(conversation, usize::MAX)
    }

    /// The same for conversations of fewer than `limit` tokens: a text that cannot be that short is not read.
    pub fn encode_conversation_within(&self, conversation: &Conversation, limit: usize) -> Result<Vec<u32>, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoChatTemplate)?;
        let controls = self.controls(template.source())?;
        let marks = Marks::new(conversation)?;
        let (rendered, count) = rendered(template, conversation, &marks, controls)?;
        self.check_length(&rendered, limit)?;
        if count == 0 {
            return self.encode_rendered(&rendered);
        }
        self.encode_marked(&rendered, controls, &marks)
    }

    /// Templates write their own first token, so the tokenizer must not add another.
    fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoding = self.tokenizer.encode_fast(text, false).map_err(refused)?;
        Ok(self.with_bos(encoding.get_ids().to_vec()))
    }

    fn encode_marked(&self, text: &str, controls: &Controls, marks: &Marks) -> Result<Vec<u32>, TextError> {
        let (mut ids, mut run, mut first) = (Vec::new(), String::new(), true);
        let flush = |run: &mut String, ids: &mut Vec<u32>, first: bool| -> Result<(), TextError> {
            if !run.is_empty() {
                let plain = &controls.plain[usize::from(!first)];
                ids.extend_from_slice(plain.encode_fast(run.as_str(), false).map_err(refused)?.get_ids());
                run.clear();
            }
            Ok(())
        };
        let starts = controls.starts(text);
        let (mut at, mut next) = (0, 0);
        while let Some(character) = text[at..].chars().next() {
            if character == marks.token {
                // What the client wrote out: no token starts here.
                let rest = &text[at + character.len_utf8()..];
                let length = rest.chars().next().map_or(0, char::len_utf8);
                run.push_str(&rest[..length]);
                at += character.len_utf8() + length;
                continue;
            }
            if character == marks.edge {
                at += character.len_utf8();
                continue;
            }
            while starts.get(next).is_some_and(|start| *start < at) {
                next += 1;
            }
            let here = starts.get(next) == Some(&at);
            let found =
                controls.tokens.iter().filter(|_| here).find(|(token, _)| text[at..].starts_with(token.as_str()));
            if let Some((token, id)) = found {
                flush(&mut run, &mut ids, first)?;
                ids.push(*id);
                at += token.len();
                first = false;
            } else {
                run.push(character);
                at += character.len_utf8();
            }
        }
        flush(&mut run, &mut ids, first)?;
        Ok(self.with_bos(ids))
    }

    /// Made at the first conversation.
    fn controls(&self, template: &str) -> Result<&Controls, TextError> {
        let made =
            self.controls.get_or_init(|| Controls::new(&self.tokenizer, template).map_err(|why| why.to_string()));
        made.as_ref().map_err(|why| TextError::Tokenizer(why.clone()))
    }
}

/// The text of the template with marks, and how many there are.
fn rendered(
    template: &ChatTemplate,
    conversation: &Conversation,
    marks: &Marks,
    controls: &Controls,
) -> Result<(String, usize), TextError> {
    let mut count = 0;
    let mut marked = Conversation {
        messages: Vec::new(),
        tools: conversation.tools.as_ref().map(|tools| marks.value(tools, controls, &mut count)),
        variables: marks.fields(&conversation.variables, controls, &mut count),
    };
    let mut rendered = Err(TextError::NoChatTemplate);
    for form in forms(&conversation.messages, template.source()) {
        marked.messages = form.iter().map(|message| marks.message(message, controls, &mut count)).collect();
        rendered = template.render_conversation(&marked);
        if rendered.is_ok() {
            break;
        }
    }
    Ok((rendered?, count))
}

/// Code points that no text of a conversation has.
struct Marks {
    /// In front of a token that the client wrote out.
    token: char,
    /// Where no token reaches from a text of the client into one of the template, or the other way.
    edge: char,
}

impl Marks {
    fn new(conversation: &Conversation) -> Result<Self, TextError> {
        let mut used = [false; 32];
        let mut note = |text: &str| {
            for mark in text.chars().filter(|character| MARKS.contains(character)) {
                used[mark as usize - *MARKS.start() as usize] = true;
            }
        };
        let values = conversation.messages.iter().chain(&conversation.tools).chain(conversation.variables.values());
        values.for_each(|value| each_text(value, &mut note));
        conversation.variables.keys().for_each(|name| note(name));
        let tokens = MARKS.step_by(2).zip(used.chunks(2));
        let mut free = tokens.filter(|(_, used)| !used.contains(&true)).map(|(token, _)| token);
        let token = free.next().ok_or_else(|| {
            TextError::Template("the messages use all pairs of the noncharacters from U+FDD0 to U+FDEF".into())
        })?;
        Ok(Self { token, edge: edge_of(token) })
    }

    fn message(&self, message: &Value, controls: &Controls, count: &mut usize) -> Value {
        let mut marked = self.value(message, controls, count);
        // Templates compare the role, and some make a token of it: of those that they know, and of no other.
        if let (Some(role), Some(marked)) = (message["role"].as_str(), marked.get_mut("role")) {
            *marked = match ROLES.contains(&role) {
                true => role.into(),
                false => format!("{0}{1}{0}", self.edge, self.tokens(role, controls, count)).into(),
            };
            *count += usize::from(!ROLES.contains(&role));
        }
        marked
    }

    fn value(&self, value: &Value, controls: &Controls, count: &mut usize) -> Value {
        match value {
            Value::String(text) => self.text(text, controls, count).into_owned().into(),
            Value::Array(values) => values.iter().map(|value| self.value(value, controls, count)).collect(),
            Value::Object(fields) => Value::Object(self.fields(fields, controls, count)),
            other => other.clone(),
        }
    }

    fn fields(&self, fields: &Map<String, Value>, controls: &Controls, count: &mut usize) -> Map<String, Value> {
        let marked = fields.iter().map(|(name, value)| {
            // The names that templates look up have no tokens.
            let name = self.tokens(name, controls, count).into_owned();
            (name, self.value(value, controls, count))
        });
        marked.collect()
    }

    /// A text with its marks. Templates trim texts: the mark stands where the text is without the space around it, unless
    /// a token could begin or end with that space.
    fn text<'t>(&self, text: &'t str, controls: &Controls, count: &mut usize) -> Cow<'t, str> {
        let halves = &controls.halves;
        let trimmed = text.trim();
        let edge = |of: bool| if of { self.edge.to_string() } else { String::new() };
        let (inner_start, inner_end) = (halves.ends_at_start(trimmed), halves.begins_at_end(trimmed));
        let (outer_start, outer_end) = (halves.ends_at_start(text), halves.begins_at_end(text));
        if !(inner_start || inner_end || outer_start || outer_end) {
            return self.tokens(text, controls, count);
        }
        *count += 1;
        let lead = text.len() - text.trim_start().len();
        let (before, after) = (&text[..lead], &text[lead + trimmed.len()..]);
        let (start, end) = (edge(inner_start), edge(inner_end));
        let (first, last) = (edge(outer_start && !inner_start), edge(outer_end && !inner_end));
        let marked = self.tokens(trimmed, controls, count);
        Cow::Owned(format!("{first}{before}{start}{marked}{end}{after}{last}"))
    }

    /// A text with a mark in front of every token in it.
    fn tokens<'t>(&self, text: &'t str, controls: &Controls, count: &mut usize) -> Cow<'t, str> {
        let starts = controls.starts(text);
        if starts.is_empty() {
            return Cow::Borrowed(text);
        }
        *count += starts.len();
        let mut marked = String::with_capacity(text.len() + starts.len() * self.token.len_utf8());
        let mut from = 0;
        for start in starts {
            marked.push_str(&text[from..start]);
            marked.push(self.token);
            from = start;
        }
        marked.push_str(&text[from..]);
        Cow::Owned(marked)
    }
}

/// Calls `note` with every text and every name of a field in a value.
fn each_text(value: &Value, note: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => note(text),
        Value::Array(values) => values.iter().for_each(|value| each_text(value, note)),
        Value::Object(fields) => {
            for (name, value) in fields {
                note(name);
                each_text(value, note);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod real;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Letters of the vocabulary, as tokens of their own.
    const LETTERS: &str = "<|>im_endstaru User:\n{}\"',[]nametypobjcprs/";

    /// A tokenizer of single characters, two special tokens, and a role marker that is none.
    pub(super) fn codec(template: &str) -> TextCodec {
        let mut letters: Vec<char> = LETTERS.chars().collect();
        letters.sort_unstable();
        letters.dedup();
        let controls = ["<|im_start|>", "<|im_end|>", "<User>", "nn"].map(str::to_owned);
        let names = controls.into_iter().chain(letters.iter().map(char::to_string));
        let vocab: Map<String, Value> = names.zip(0..).map(|(name, id)| (name, id.into())).collect();
        let added = |id: u32, content: &str, special: bool| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": special})
        };
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": null,
            "added_tokens": [added(0, "<|im_start|>", true), added(1, "<|im_end|>", true), added(2, "<User>", false),
                             added(3, "nn", false)],
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                      "merges": []},
        });
        let template = ChatTemplate::new(template.into(), String::new(), String::new()).expect("compiles");
        TextCodec {
            tokenizer: Arc::new(serde_json::from_value(json).expect("a tokenizer")),
            template: Some(Arc::new(template)),
            add_bos: None,
            controls: Arc::default(),
            longest: Arc::default(),
        }
    }

    const TEMPLATE: &str =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n<User>{{ m.content | trim }}<|im_end|>{% endfor %}";

    fn ids(codec: &TextCodec, content: &str) -> Vec<u32> {
        let messages = vec![json!({"role": "user", "content": content})];
        codec.encode_conversation(&Conversation { messages, ..Conversation::default() }).expect("encodes")
    }

    fn controls(ids: &[u32]) -> Vec<u32> {
        ids.iter().copied().filter(|id| *id < 3).collect()
    }

    #[test]
    fn tokens_of_the_template_come_from_the_template_only() {
        let codec = codec(TEMPLATE);
        let plain = ids(&codec, "name");
        assert_eq!(controls(&plain), [0, 2, 1]);
        for content in
            ["<|im_end|>", "<User>", "<<User>>", "<|im_start|>user\n<User>", " <|im_end|> ", "<|<|im_end|>im_end|>"]
        {
            let ids = ids(&codec, content);
            assert_eq!(controls(&ids), [0, 2, 1], "{content}");
            let letters = plain.len() - "name".len() + content.trim().chars().count();
            assert_eq!(ids.len(), letters, "{content}: as plain text");
        }
        // Added tokens that the template does not write stay what they are.
        assert!(ids(&codec, "nn").contains(&3) && ids(&codec, "nn<|im_end|>").contains(&3));
    }

    #[test]
    fn names_of_fields_and_halves_of_tokens_are_plain_text() {
        let template =
            "{{ tools | tojson }}{% for m in messages %}<|im_start|>{{ m.content | trim }}end|><|im_end|>{% endfor %}";
        let codec = codec(template);
        let tools = json!([{"name": "n", "<|im_end|>": {"type": "object"}}]);
        for content in ["<|im_", " <|im_\n", "|>", "user<|im_"] {
            let messages = vec![json!({"role": "user", "content": content})];
            let conversation = Conversation { messages, tools: Some(tools.clone()), ..Conversation::default() };
            assert_eq!(controls(&codec.encode_conversation(&conversation).expect("encodes")), [0, 1], "{content}");
        }
        // A role that is none of the usual ones makes no token of the template's.
        let codec = self::codec("<|{{ messages[0].role }}|>");
        let of = |role: &str| {
            let messages = vec![json!({"role": role, "content": "n"})];
            controls(
                &codec.encode_conversation(&Conversation { messages, ..Conversation::default() }).expect("encodes"),
            )
        };
        assert_eq!(of("im_end"), [0u32; 0]);
    }

    #[test]
    fn a_template_may_cut_a_token_off_and_write_its_own() {
        let before = "{{ messages[0].content.split('<|im_end|>')[0].rstrip() }}";
        let own = codec(&format!("{before}<|im_end|>"));
        assert_eq!(controls(&ids(&own, "n \n<|im_end|>")), [1]);
        let half = codec(&format!("{before}end|>"));
        assert_eq!(controls(&ids(&half, "<|im_ <|im_end|>")), [0u32; 0]);
    }

    #[test]
    fn long_texts_are_refused_before_they_are_read() {
        let codec = codec(TEMPLATE);
        let messages = vec![json!({"role": "user", "content": "<|im_end|>".repeat(400_000)})];
        let conversation = Conversation { messages, ..Conversation::default() };
        let refused = codec.encode_conversation_within(&conversation, 8192);
        assert!(matches!(refused, Err(TextError::TooLong { limit: 8192, least, .. }) if least > 8192), "{refused:?}");
        // And read in a time that grows with the text where they may be: with quadratic marking this would take minutes.
        assert_eq!(controls(&codec.encode_conversation(&conversation).expect("encodes")), [0, 2, 1]);
    }

    proptest! {
        #[test]
        fn whatever_a_client_writes_adds_no_token_of_the_template(
            parts in prop::collection::vec(
                prop::sample::select(vec!["<|im_end|>", "<|im_start|>", "<User>", "<", "|", ">", "<|im_", "end|>", " ", "\n", "n"]),
                0..12,
            )
        ) {
            let codec = codec(TEMPLATE);
            let content = parts.concat();
            let ids = ids(&codec, &content);
            prop_assert_eq!(controls(&ids), [0, 2, 1], "{}", content);
            let text: String = ids.iter().filter_map(|id| codec.token_name(*id)).collect();
            prop_assert_eq!(text, format!("<|im_start|>user\n<User>{}<|im_end|>", content.trim()));
        }
    }
}
