//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use serde_json::{Map, Value};
use tokenrouter_api::chat::{
    self as api, AssistantMessage, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatLogprob, ChatLogprobs,
    ChatRequest, Delta, Message, ScoredToken, ToolChoice,
};

use super::format::{Format, event};
use super::generation::{Chunk, Generation, GenerationRequest};
use super::params::{Params, request_id, top_logprobs};
use super::prompt::encode_conversation;
use super::{ApiError, App, body, format, observe};
use crate::tokenizer::Conversation;
use tokenrouter_core::request::TokenLogprobs;

pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let id = observe::request_id(&request);
    let request = body::read(&app, request, |app, asked| prepare(app, asked, id)).await?;
    format::respond(&app, request).await
}

fn prepare(app: &App, asked: ChatRequest, id: String) -> Result<GenerationRequest, ApiError> {
    let request_id = request_id(id, &asked.sampling)?;
    let mut params = Params::new(asked.sampling, app)?;
    params.logprobs = logprobs(&asked.logprobs)?;
    params.check_room(app, 1)?;
    let conversation = conversation(asked.prompt)?;
    if conversation.tools.is_some() && asked.unsupported.parallel_tool_calls.value() == &Value::Bool(false) {
        return Err(ApiError::field(
            "parallel_tool_calls",
            "is not supported with value `false` beside tools, only `true`",
        ));
    }
    let prompts = vec![encode_conversation(app, &conversation)?];
    Ok(GenerationRequest { prompts, params, format: Format::Chat, request_id })
}

fn logprobs(asked: &api::ChatLogprobsOptions) -> Result<Option<usize>, ApiError> {
    match (asked.logprobs, top_logprobs("top_logprobs", asked.top_logprobs)?) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::field("top_logprobs", "needs `logprobs` to be true")),
    }
}

/// What the template is given.
pub(super) fn conversation(asked: api::Conversation) -> Result<Conversation, ApiError> {
    let messages = asked.messages.0.into_iter().enumerate().map(|(index, one)| message(index, one));
    let shown = asked.tools.filter(|tools| !tools.0.is_empty() && asked.tool_choice != Some(ToolChoice::None));
    Ok(Conversation {
        messages: messages.collect::<Result<_, _>>()?,
        tools: shown.map(|tools| tools.0.into_iter().map(Value::Object).collect()),
        variables: template_variables(asked.chat_template_kwargs.unwrap_or_default())?,
    })
}

fn message(index: usize, message: Message) -> Result<Value, ApiError> {
    let absent = |part: &str, wanted: &str| {
        ApiError::field(&format!("messages[{index}].{part}"), format!("is `null`, it must be {wanted}"))
    };
    let role = message.role.0.ok_or_else(|| absent("role", "a text such as `user`"))?;
    let calls = message.tool_calls.filter(|calls| !calls.as_array().is_some_and(Vec::is_empty));
    let content = match message.content {
        Some(content) => Value::String(content.into_text()),
        None if calls.is_some() => Value::Null,
        None => return Err(absent("content", "a text or a list of text parts")),
    };
    let mut fields = Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content)]);
    if let Some(calls) = calls {
        fields.insert("tool_calls".into(), calls);
    }
    fields.extend(message.more);
    Ok(Value::Object(fields))
}

/// Variables of the chat template.
fn template_variables(variables: Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    const RESERVED: [&str; 4] = ["messages", "tools", "bos_token", "eos_token"];
    match RESERVED.iter().find(|name| variables.contains_key(**name)) {
        Some(name) => Err(ApiError::field(
            "chat_template_kwargs",
            format!("sets `{name}`, which comes from the request or the model"),
        )),
        None => Ok(variables),
    }
}

/// What a stream begins with: one chunk a choice.
pub(super) fn opening(generation: &Generation) -> Vec<Event> {
    let delta = Delta { role: Some("assistant".into()), content: Some(String::new()) };
    let chunk =
        |index| envelope(generation, vec![ChatChunkChoice { index, delta: delta.clone(), ..Default::default() }]);
    (0..generation.choices.len()).map(|index| event(&chunk(index))).collect()
}

/// A chunk of a stream.
pub(super) fn chunk(generation: &Generation, chunk: &Chunk) -> Event {
    let choice = ChatChunkChoice {
        index: chunk.choice,
        delta: Delta { role: None, content: (!chunk.text.is_empty()).then(|| chunk.text.clone()) },
        logprobs: logprobs_of(generation, &chunk.logprobs),
        finish_reason: chunk.finish_reason(),
    };
    let routing = Some(generation.chunk_routing(chunk));
    let usage = generation.params.continuous_usage.then(|| generation.usage());
    let obfuscation = format::obfuscation(generation, &chunk.text);
    event(&ChatChunk { obfuscation, routing, usage, ..envelope(generation, vec![choice]) })
}

/// The last chunk of a stream, which has the usage.
pub(super) fn usage(generation: &Generation) -> Event {
    event(&ChatChunk { usage: Some(generation.usage()), ..envelope(generation, Vec::new()) })
}

fn envelope(generation: &Generation, choices: Vec<ChatChunkChoice>) -> ChatChunk {
    ChatChunk {
        id: generation.id.clone(),
        object: "chat.completion.chunk".into(),
        created: generation.created,
        model: generation.app.config.model_name.clone(),
        choices,
        ..ChatChunk::default()
    }
}

/// An answer that is not streamed.
pub(super) fn whole(generation: &Generation) -> ChatCompletion {
    let choice = |whole: &Chunk| ChatChoice {
        index: whole.choice,
        message: AssistantMessage { role: "assistant".into(), content: Some(whole.text.clone()) },
        logprobs: logprobs_of(generation, &whole.logprobs),
        finish_reason: whole.finish_reason(),
    };
    ChatCompletion {
        id: generation.id.clone(),
        object: "chat.completion".into(),
        created: generation.created,
        model: generation.app.config.model_name.clone(),
        choices: generation.choices.iter().map(|one| choice(&one.whole)).collect(),
        usage: generation.usage(),
        routing: generation.steps(),
    }
}

fn logprobs_of(generation: &Generation, tokens: &[TokenLogprobs]) -> Option<ChatLogprobs> {
    generation.params.logprobs?;
    let scored = |id: u32, logprob: f32| {
        let (token, bytes) = generation.token_text(id);
        ScoredToken { token, logprob: Some(f64::from(logprob)), bytes: Some(bytes) }
    };
    let content = tokens.iter().map(|token| ChatLogprob {
        token: scored(token.token, token.logprob),
        top_logprobs: token.top.iter().map(|(id, logprob)| scored(*id, *logprob)).collect(),
    });
    Some(ChatLogprobs { content: content.collect(), refusal: None })
}
