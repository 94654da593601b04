//! The routes of the API, and `GET /openapi.json`: the OpenAPI document, from the types.
//!
//! The server's router is built from [`Operation::ALL`], so that no route is missing here.

use schemars::generate::{Contract, SchemaSettings};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::{chat, completions, error, generate, models, status, tokenize};

/// A route of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `POST /v1/chat/completions`.
    ChatCompletions,
    /// `POST /v1/completions`.
    Completions,
    /// `GET /v1/models`.
    Models,
    /// `GET /v1/models/{id}`.
    Model,
    /// `DELETE /v1/requests/{id}`.
    Cancel,
    /// `POST /generate`.
    Generate,
    /// `POST /tokenize`.
    Tokenize,
    /// `POST /detokenize`.
    Detokenize,
    /// `GET /health`.
    Health,
    /// `GET /ready`.
    Ready,
    /// `GET /info`.
    Info,
    /// `GET /metrics`.
    Metrics,
    /// `GET /openapi.json`.
    OpenApi,
    /// `GET /`.
    Page,
}

/// What is in a body.
enum Content {
    Json(Schema),
    /// Server-sent events, each with such an object as data; a last one says `[DONE]`.
    Events(Schema),
    Text,
    Html,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Models,
        Self::Model,
        Self::Cancel,
        Self::Generate,
        Self::Tokenize,
        Self::Detokenize,
        Self::Health,
        Self::Ready,
        Self::Info,
        Self::Metrics,
        Self::OpenApi,
        Self::Page,
    ];

    /// The path, with `{id}` for the one that varies.
    pub fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Models => "/v1/models",
            Self::Model => "/v1/models/{id}",
            Self::Cancel => "/v1/requests/{id}",
            Self::Generate => "/generate",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
            Self::Health => "/health",
            Self::Ready => "/ready",
            Self::Info => "/info",
            Self::Metrics => "/metrics",
            Self::OpenApi => "/openapi.json",
            Self::Page => "/",
        }
    }

    /// The method, in lower case as OpenAPI has it.
    pub fn method(self) -> &'static str {
        match self {
            Self::ChatCompletions | Self::Completions | Self::Generate | Self::Tokenize | Self::Detokenize => "post",
            Self::Cancel => "delete",
            Self::Models
            | Self::Model
            | Self::Health
            | Self::Ready
            | Self::Info
            | Self::Metrics
            | Self::OpenApi
            | Self::Page => "get",
        }
    }

    /// Whether the route is there on every node, whichever models it has; others are where requests enter.
    pub fn on_every_node(self) -> bool {
        matches!(self, Self::Health | Self::Ready | Self::Info | Self::Metrics | Self::OpenApi)
    }

    /// Whether the route needs no API key: probes, and a page that holds no data.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Health | Self::Ready | Self::Page)
    }

    fn summary(self) -> &'static str {
        match self {
            Self::ChatCompletions => "Continue a conversation",
            Self::Completions => "Continue texts",
            Self::Models => "The routed system and its models",
            Self::Model => "The same by the name that requests give",
            Self::Cancel => "Cancel a request by its id or its answer's",
            Self::Generate => "Continue a prompt, in SGLang's form",
            Self::Tokenize => "Text or a conversation to tokens",
            Self::Detokenize => "Tokens to text",
            Self::Health => "Whether all subservers run",
            Self::Ready => "Whether new requests are taken",
            Self::Info => "Version, launch decisions and limits",
            Self::Metrics => "Metrics in the text format of Prometheus",
            Self::OpenApi => "This document",
            Self::Page => "A page for people",
        }
    }

    fn request(self, schemas: &mut Schemas) -> Option<Schema> {
        Some(match self {
            Self::ChatCompletions => schemas.request::<chat::ChatRequest>(),
            Self::Completions => schemas.request::<completions::CompletionRequest>(),
            Self::Generate => schemas.request::<generate::GenerateRequest>(),
            Self::Tokenize => schemas.request::<tokenize::TokenizeRequest>(),
            Self::Detokenize => schemas.request::<tokenize::DetokenizeRequest>(),
            _ => return None,
        })
    }

    /// What a response with status 200 holds.
    fn answer(self, schemas: &mut Schemas) -> Vec<Content> {
        match self {
            Self::ChatCompletions => vec![
                Content::Json(schemas.answer::<chat::ChatCompletion>()),
                Content::Events(schemas.answer::<chat::ChatChunk>()),
            ],
            Self::Completions => vec![
                Content::Json(schemas.answer::<completions::TextCompletion>()),
                Content::Events(schemas.answer::<completions::TextChunk>()),
            ],
            Self::Generate => vec![
                Content::Json(schemas.answer::<generate::GenerateResponse>()),
                Content::Events(schemas.answer::<generate::Generated>()),
            ],
            Self::Models => vec![Content::Json(schemas.answer::<models::Models>())],
            Self::Model => vec![Content::Json(schemas.answer::<models::Model>())],
            Self::Cancel => vec![Content::Json(schemas.answer::<status::Cancelled>())],
            Self::Tokenize => vec![Content::Json(schemas.answer::<tokenize::Tokenized>())],
            Self::Detokenize => vec![Content::Json(schemas.answer::<tokenize::Detokenized>())],
            Self::Health => vec![Content::Json(schemas.answer::<status::Health>())],
            Self::Ready => vec![Content::Json(schemas.answer::<status::Ready>())],
            Self::Info => vec![Content::Json(schemas.answer::<status::Info>())],
            Self::Metrics => vec![Content::Text],
            Self::OpenApi => vec![Content::Json(Schema::from(Map::from_iter([("type".into(), "object".into())])))],
            Self::Page => vec![Content::Html],
        }
    }

    /// The same body with status 503 says what is wrong.
    fn answers_when_unavailable(self) -> bool {
        matches!(self, Self::Health | Self::Ready)
    }
}

/// Schemas of requests say what may be sent, those of answers what always comes.
struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let generator = |contract| {
            let mut settings = SchemaSettings::draft2020_12();
            settings.contract = contract;
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
            settings.into_generator()
        };
        Self { requests: generator(Contract::Deserialize), answers: generator(Contract::Serialize) }
    }

    fn request<T: JsonSchema>(&mut self) -> Schema {
        self.requests.subschema_for::<T>()
    }

    fn answer<T: JsonSchema>(&mut self) -> Schema {
        self.answers.subschema_for::<T>()
    }

    fn take(mut self) -> Map<String, Value> {
        let mut all = self.requests.take_definitions(true);
        all.extend(self.answers.take_definitions(true));
        all
    }
}

/// The document of a server that has these routes.
pub fn document(operations: &[Operation], version: &str) -> Value {
    let mut schemas = Schemas::new();
    let error = schemas.answer::<error::ErrorBody>();
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations {
        let item = paths.entry(operation.path()).or_insert_with(|| json!({}));
        item[operation.method()] = describe(*operation, &mut schemas, &error);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "TokenRouter",
            "version": version,
            "description": "Token-level LLM routing behind one model name. Unknown fields of requests are refused.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas.take(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn describe(operation: Operation, schemas: &mut Schemas, error: &Schema) -> Value {
    let mut answer = json!({"description": "The answer", "content": {}});
    for content in operation.answer(schemas) {
        let (kind, schema) = match content {
            Content::Json(schema) => ("application/json", schema.to_value()),
            Content::Events(schema) => ("text/event-stream", schema.to_value()),
            Content::Text => ("text/plain", json!({"type": "string"})),
            Content::Html => ("text/html", json!({"type": "string"})),
        };
        answer["content"][kind] = json!({"schema": schema});
    }
    let mut responses = json!({"200": answer});
    if operation.answers_when_unavailable() {
        responses["503"] = answer;
        responses["503"]["description"] = json!("The same, with what is wrong");
    }
    responses["default"] = json!({
        "description": "An error",
        "content": {"application/json": {"schema": error}},
    });
    let mut described = json!({
        "operationId": format!("{operation:?}"),
        "summary": operation.summary(),
        "responses": responses,
        // A server without keys takes requests without one.
        "security": if operation.is_open() { json!([]) } else { json!([{"key": []}, {}]) },
    });
    if let Some(schema) = operation.request(schemas) {
        described["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    if operation.path().contains("{id}") {
        described["parameters"] = json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    described
}
