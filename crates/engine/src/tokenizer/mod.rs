//! Text to tokens and back: tokenizer, chat template, incremental decoding.

mod chat;
mod conversation;
mod from_dir;
mod from_gguf;
mod jinja;
mod messages;
mod stream;
mod token_bytes;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tokenizers::Tokenizer;

pub use chat::{ChatMessage, ChatTemplate};
pub use conversation::Conversation;
pub use stream::StreamDecoder;
use tokenrouter_core::token_texts::TokenTexts;

use crate::files::ModelError;

/// Text could not be turned into tokens, or a conversation into text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The tokenizer library refused.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The model has no chat template.
    #[error("the model has no chat template; send a plain prompt instead of messages")]
    NoChatTemplate,
    /// The chat template refused the messages.
    #[error("chat template: {0}")]
    Template(String),
    /// The text is longer than may be read.
    #[error(
        "the prompt has {bytes} bytes, which are at least {least} tokens, and a request may have at most {limit} tokens \
         with its output"
    )]
    TooLong {
        /// Length of the text.
        bytes: usize,
        /// Tokens that it cannot do without.
        least: usize,
        /// Most tokens, of which at least one is for the output.
        limit: usize,
    },
}

/// Tokenizer and chat template of a model. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TextCodec {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    add_bos: Option<u32>,
    /// Tokens of the chat template, or why they cannot be told apart.
    controls: Arc<OnceLock<Result<conversation::Controls, String>>>,
    /// Bytes of the longest token.
    longest: Arc<OnceLock<usize>>,
}

impl TextCodec {
    /// From a `tokenizer.json`, with the chat template of `chat_template.jinja` or `tokenizer_config.json`.
    pub fn from_dir(dir: &Path) -> Result<Self, ModelError> {
        let tokenizer = from_dir::tokenizer(dir)?;
        let template = ChatTemplate::from_dir(dir)?.map(Arc::new);
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            template,
            add_bos: None,
            controls: Arc::default(),
            longest: Arc::default(),
        })
    }

    pub(crate) fn from_gguf(metadata: &crate::files::GgufMetadata<'_>) -> Result<Self, ModelError> {
        let (tokenizer, add_bos) = from_gguf::tokenizer(metadata)?;
        let template = ChatTemplate::from_gguf(metadata)?.map(Arc::new);
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            template,
            add_bos,
            controls: Arc::default(),
            longest: Arc::default(),
        })
    }

    /// Token ids of a text. Special tokens written out in the text become their ids.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoding =
            self.tokenizer.encode_fast(text, true).map_err(|error| TextError::Tokenizer(error.to_string()))?;
        Ok(self.with_bos(encoding.get_ids().to_vec()))
    }

    /// The same for a text of fewer than `limit` tokens: one that cannot be that short is not read.
    pub fn encode_within(&self, text: &str, limit: usize) -> Result<Vec<u32>, TextError> {
        self.check_length(text, limit)?;
        self.encode(text)
    }

    fn check_length(&self, text: &str, limit: usize) -> Result<(), TextError> {
        let vocabulary = || self.tokenizer.get_vocab(true).keys().map(String::len).max().unwrap_or(0);
        let least = least_tokens(text, *self.longest.get_or_init(vocabulary));
        if least >= limit { Err(TextError::TooLong { bytes: text.len(), least, limit }) } else { Ok(()) }
    }

    /// With the first token that the file asks for, unless it is there.
    fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.add_bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// The text of token ids, without special tokens. Incomplete UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        self.tokenizer.decode(ids, true).map_err(|error| TextError::Tokenizer(error.to_string()))
    }

    /// The id of a token, special ones included.
    pub fn token_id(&self, name: &str) -> Option<u32> {
        self.tokenizer.token_to_id(name)
    }

    /// The name of a token, special ones included.
    pub fn token_name(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// A decoder that turns a growing token sequence into text, piece by piece.
    /// Its text ends before the first of the `stop` texts.
    pub fn stream(&self, stop: &[String]) -> StreamDecoder {
        StreamDecoder::new(self.clone(), stop)
    }

    /// The bytes of every token.
    pub fn token_texts(&self) -> TokenTexts {
        token_bytes::token_texts(&self.tokenizer)
    }

    /// The prompt text of a conversation, ready for the assistant's turn.
    pub fn apply_chat_template(&self, messages: &[ChatMessage]) -> Result<String, TextError> {
        self.template.as_ref().ok_or(TextError::NoChatTemplate)?.render(messages)
    }

    /// Whether conversations can be rendered.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// Source of the chat template.
    pub fn chat_template_source(&self) -> Option<&str> {
        self.template.as_ref().map(|template| template.source())
    }

    /// A hash over all tokens with their ids, and whether they are special; `without` one id. Models that exchange tokens
    /// must agree on it.
    pub fn vocabulary_hash(&self, without: Option<u32>) -> u64 {
        let vocabulary = self.tokenizer.get_vocab(true);
        let added = self.tokenizer.get_added_tokens_decoder();
        let entries = vocabulary.iter().filter(|(_, id)| Some(**id) != without);
        let mut entries: Vec<_> = entries.map(|(token, id)| (*id, token.as_str())).collect();
        entries.sort_unstable();
        // FNV-1a: stable across processes and versions, unlike the standard library's hasher.
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for (id, token) in entries {
            let special = added.get(&id).is_some_and(|token| token.special);
            let end = [0xff, u8::from(special)];
            for byte in id.to_le_bytes().into_iter().chain(token.bytes()).chain(end) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        hash
    }
}

/// Fewer tokens than these cannot hold the text. Space is not counted, because some tokenizers drop it, and the rest may
/// become a third when characters are composed.
fn least_tokens(text: &str, longest_token: usize) -> usize {
    let bytes = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).count();
    (bytes / 3).checked_div(longest_token).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_at_least_the_tokens_that_its_characters_need() {
        assert_eq!(least_tokens(&"a".repeat(3000), 10), 100);
        assert_eq!(least_tokens(&" \n".repeat(3000), 10), 0);
        assert_eq!(least_tokens("a", 0), 0);
    }
}
