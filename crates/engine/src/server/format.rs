//! Answers in the forms of the APIs: OpenAI's chat completions and completions, and SGLang's `generate`.

use axum::response::sse::Event;
use serde_json::{Map, Value, json};

use super::answer::{Answer, Choice, Piece};
use crate::request::{FinishReason, TokenLogprobs};

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
    /// `/generate`.
    Generate,
}

impl Format {
    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Text => "cmpl",
            Self::Generate => "gen",
        }
    }

    /// What a stream begins with.
    pub(super) fn opening(self, answer: &Answer) -> Vec<Event> {
        if self != Self::Chat {
            return Vec::new();
        }
        let role = json!({"role": "assistant", "content": ""});
        let chunk = |index| {
            let choice = json!({"index": index, "delta": role, "logprobs": null, "finish_reason": null});
            event(&envelope(answer, "chat.completion.chunk", choice))
        };
        (0..answer.choices.len()).map(chunk).collect()
    }

    /// A piece of a stream. It says how many tokens it holds and which models wrote them.
    pub(super) fn chunk(self, answer: &Answer, piece: &Piece) -> Event {
        if self == Self::Generate {
            return event(&generated(answer, &answer.choices[piece.choice]));
        }
        let finish = piece.finish.as_ref().map(FinishReason::as_str);
        let logprobs = self.logprobs(answer, piece);
        let mut chunk = if self == Self::Chat {
            let delta = if piece.text.is_empty() { json!({}) } else { json!({"content": piece.text}) };
            let choice = json!({"index": piece.choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish});
            envelope(answer, "chat.completion.chunk", choice)
        } else {
            let choice =
                json!({"index": piece.choice, "text": piece.text, "logprobs": logprobs, "finish_reason": finish});
            envelope(answer, "text_completion", choice)
        };
        let names = answer.app.engine.model_names();
        let models: Vec<&String> = piece.origins.iter().map(|model| &names[*model]).collect();
        chunk["routing"] = json!({"tokens": models.len(), "models": models});
        if answer.params.trace {
            chunk["routing"]["steps"] = Value::Array(piece.steps.clone());
        }
        if answer.params.continuous_usage {
            chunk["usage"] = answer.usage();
        }
        event(&chunk)
    }

    /// What a stream ends with.
    pub(super) fn closing(self, answer: &Answer) -> Vec<Event> {
        let mut events = Vec::new();
        if self != Self::Generate && answer.params.include_usage {
            let object = if self == Self::Chat { "chat.completion.chunk" } else { "text_completion" };
            let mut last = envelope(answer, object, Value::Null);
            last["choices"] = json!([]);
            last["usage"] = answer.usage();
            events.push(event(&last));
        }
        events.push(Event::default().data("[DONE]"));
        events
    }

    /// An answer that is not streamed.
    pub(super) fn whole(self, answer: &Answer) -> Value {
        if self == Self::Generate {
            let mut all: Vec<Value> = answer.choices.iter().map(|choice| generated(answer, choice)).collect();
            return if all.len() == 1 { all.remove(0) } else { Value::Array(all) };
        }
        let choices: Vec<Value> = answer.choices.iter().map(|choice| self.choice(answer, &choice.whole)).collect();
        let object = if self == Self::Chat { "chat.completion" } else { "text_completion" };
        let mut body = envelope(answer, object, Value::Null);
        body["choices"] = Value::Array(choices);
        body["usage"] = answer.usage();
        if answer.params.trace {
            let steps: Vec<&Value> = answer.choices.iter().flat_map(|choice| &choice.whole.steps).collect();
            body["routing"] = json!({"steps": steps});
        }
        body
    }

    fn choice(self, answer: &Answer, piece: &Piece) -> Value {
        let finish = piece.finish.as_ref().map(FinishReason::as_str);
        let logprobs = self.logprobs(answer, piece);
        if self == Self::Chat {
            let message = json!({"role": "assistant", "content": piece.text});
            json!({"index": piece.choice, "message": message, "logprobs": logprobs, "finish_reason": finish})
        } else {
            json!({"index": piece.choice, "text": piece.text, "logprobs": logprobs, "finish_reason": finish})
        }
    }

    fn logprobs(self, answer: &Answer, piece: &Piece) -> Value {
        match self {
            _ if answer.params.logprobs.is_none() => Value::Null,
            Self::Chat => chat_logprobs(answer, &piece.logprobs),
            _ => text_logprobs(answer, &piece.logprobs),
        }
    }
}

fn event(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

fn envelope(answer: &Answer, object: &str, choice: Value) -> Value {
    json!({
        "id": answer.id, "object": object, "created": answer.created, "model": answer.app.config.model_name,
        "choices": [choice],
    })
}

/// SGLang's form: the whole text so far, and what is known of the request.
fn generated(answer: &Answer, choice: &Choice) -> Value {
    let reason = choice.whole.finish.as_ref().map(|reason| {
        let mut reason = json!({"type": reason.as_str()});
        if reason["type"] == "length" {
            reason["length"] = json!(choice.ids.len());
        }
        reason
    });
    json!({
        "text": choice.whole.text,
        "output_ids": choice.ids,
        "meta_info": {
            "id": answer.id,
            "finish_reason": reason,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": choice.ids.len(),
            "e2e_latency": answer.started.elapsed().as_secs_f64(),
            "routing": answer.usage()["routing"],
        },
    })
}

/// A token as text. Parts of characters are shown as U+FFFD; the bytes tell them exactly.
fn token_text(answer: &Answer, id: u32) -> (String, Vec<u8>) {
    let engine = &answer.app.engine;
    let bytes = engine.token_texts().map(|texts| texts.get(id).to_vec()).unwrap_or_default();
    if bytes.is_empty() {
        // A special token: it has a name, and no place in the text.
        return (engine.text().and_then(|text| text.token_name(id)).unwrap_or_default(), bytes);
    }
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}

fn chat_logprobs(answer: &Answer, tokens: &[TokenLogprobs]) -> Value {
    let one = |id: u32, logprob: f32| {
        let (token, bytes) = token_text(answer, id);
        json!({"token": token, "logprob": logprob, "bytes": bytes})
    };
    let content = tokens.iter().map(|token| {
        let mut entry = one(token.token, token.logprob);
        entry["top_logprobs"] = token.top.iter().map(|(id, logprob)| one(*id, *logprob)).collect();
        entry
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

fn text_logprobs(answer: &Answer, tokens: &[TokenLogprobs]) -> Value {
    let names: Vec<String> = tokens.iter().map(|token| token_text(answer, token.token).0).collect();
    let top = tokens.iter().map(|token| {
        let entries = token.top.iter().map(|(id, logprob)| (token_text(answer, *id).0, json!(logprob)));
        Value::Object(entries.collect::<Map<_, _>>())
    });
    let mut offset = 0;
    let offsets: Vec<usize> = names
        .iter()
        .map(|name| {
            let start = offset;
            offset += name.chars().count();
            start
        })
        .collect();
    json!({
        "tokens": names,
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": top.collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}
