//! `/openapi.json` is what the server does: every route is there, and answers are valid by their schemas.

use boon::{Compiler, Schemas};
use serde_json::{Value, json};
use tokenrouter_api::openapi::Operation;

use crate::client::{Response, get, post, send};
use crate::running::{Running, STAYS, emulated};

const PLACE: &str = "http://test/openapi.json";

/// The document of a running server.
pub(crate) struct Document(Value);

impl Document {
    pub(crate) fn of(server: &Running) -> Self {
        Self(get(server.address, "/openapi.json").json())
    }

    /// Checks an answer by the schema of its route, status and kind.
    pub(crate) fn check(&self, operation: Operation, status: &str, kind: &str, answer: &Value) {
        let responses = &self.0["paths"][operation.path()][operation.method()]["responses"];
        let schema = &responses[status]["content"][kind]["schema"];
        let reference = schema["$ref"].as_str().unwrap_or_else(|| panic!("{operation:?} {status} {kind}: {schema}"));
        let mut compiler = Compiler::new();
        compiler.add_resource(PLACE, self.0.clone()).expect("added");
        let mut schemas = Schemas::new();
        let index = compiler.compile(&format!("{PLACE}{reference}"), &mut schemas).expect("a schema");
        if let Err(error) = schemas.validate(answer, index) {
            panic!("{operation:?} {status} {kind}: {error:#}\n{answer}");
        }
    }

    /// Checks a whole answer.
    pub(crate) fn whole(&self, operation: Operation, response: Response) {
        assert_eq!(response.status, 200, "{operation:?}");
        self.check(operation, "200", "application/json", &response.json());
    }

    /// Checks every event of a stream, which must have some.
    pub(crate) fn stream(&self, operation: Operation, response: Response) {
        let (events, done) = response.events();
        assert!(done && !events.is_empty(), "{operation:?}");
        events.iter().for_each(|event| self.check(operation, "200", "text/event-stream", event));
    }

    /// Checks a refusal.
    fn refusal(&self, operation: Operation, response: Response) {
        assert!(response.status >= 400, "{operation:?}");
        self.check(operation, "default", "application/json", &response.json());
    }
}

#[test]
fn every_route_is_there_and_answers_by_its_schema() {
    let server = emulated("");
    let document = Document::of(&server);
    let address = server.address;
    for operation in Operation::ALL {
        let path = operation.path().replace("{id}", "a");
        let described = &document.0["paths"][operation.path()][operation.method()];
        assert!(described.is_object(), "{operation:?}");
        let response = send(address, &operation.method().to_uppercase(), &path, &[], "{}");
        assert_ne!(response.status, 405, "{operation:?}");
        let found = response.status != 404 || response.json()["error"]["code"] != "not_found";
        assert!(found, "{operation:?}");
    }
    document.whole(Operation::Health, get(address, "/health"));
    document.whole(Operation::Ready, get(address, "/ready"));
    document.whole(Operation::Info, get(address, "/info"));
    document.whole(Operation::Models, get(address, "/v1/models"));
    document.whole(Operation::Model, get(address, "/v1/models/tokenrouter"));
    document.refusal(Operation::Model, get(address, "/v1/models/other"));
    document.whole(Operation::Generate, server.ask(STAYS, 3, &json!({"stream": false})));
    document.stream(Operation::Generate, server.ask(STAYS, 3, &json!({})));
    let several = json!({"input_ids": [1], "sampling_params": {"n": 2, "max_new_tokens": 2}});
    document.whole(Operation::Generate, post(address, "/generate", &several));
    let body = json!({"prompt": [[1], [2]], "max_tokens": 2, "routing": {"trace": true}});
    document.whole(Operation::Completions, post(address, "/v1/completions", &body));
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let streamed = json!({"prompt": [1], "max_tokens": 2, "stream": true, "stream_options": options});
    document.stream(Operation::Completions, post(address, "/v1/completions", &streamed));
    document.refusal(Operation::Completions, post(address, "/v1/completions", &json!({"prompt": [1], "echo": true})));
    document.refusal(Operation::Tokenize, post(address, "/tokenize", &json!({"prompt": "a"})));
    document.refusal(Operation::Cancel, send(address, "DELETE", "/v1/requests/a", &[], ""));
}

#[test]
fn errors_are_json_on_every_path() {
    let server = emulated("server: {max_body_kib: 1}");
    let address = server.address;
    let long = json!({"input_ids": vec![1; 2000]}).to_string();
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let text = [("content-type", "text/plain")];
    for (method, path, headers, body, status, code) in [
        ("GET", "/nothing", &[][..], "", 404, "not_found"),
        ("GET", "/v1/models/a/b", &[], "", 404, "model_not_found"),
        ("GET", "/v1/models/%ff", &[], "", 400, "invalid_request"),
        ("DELETE", "/v1/requests/%ff", &[], "", 400, "invalid_request"),
        ("DELETE", "/v1/requests/a", &[], "", 404, "request_not_found"),
        ("GET", "/v1/completions", &[], "", 405, "method_not_allowed"),
        ("POST", "/health", &[], "{}", 405, "method_not_allowed"),
        ("PUT", "/v1/models/tokenrouter", &[], "{}", 405, "method_not_allowed"),
        ("POST", "/generate", &[], "{", 400, "invalid_json"),
        ("POST", "/generate", &[], deep.as_str(), 400, "invalid_json"),
        ("POST", "/generate", &[], "[]", 400, "invalid_request"),
        ("POST", "/generate", &[], long.as_str(), 413, "body_too_large"),
        ("POST", "/generate", &text, "{}", 415, "unsupported_media_type"),
        ("GET", "/health", &[("host", "evil.example")], "", 421, "host_not_allowed"),
    ] {
        let response = send(address, method, path, headers, body);
        assert_eq!(
            (response.status, response.header("content-type")),
            (status, Some("application/json")),
            "{method} {path}"
        );
        assert_eq!(response.header("allow").is_some(), status == 405, "{method} {path}");
        assert!(response.header("x-request-id").is_some(), "{method} {path}");
        let error = response.json()["error"].clone();
        assert_eq!(error["code"], code, "{method} {path}: {error}");
    }
    assert_eq!(get(address, "/v1/models/default").json()["id"], "tokenrouter");
}

#[test]
fn a_server_that_is_not_well_says_so_by_its_schema() {
    let server = emulated("");
    let document = Document::of(&server);
    let (_, done) = server.ask(crate::running::PANICS, 10, &json!({})).events();
    assert!(!done);
    for (operation, path) in [(Operation::Health, "/health"), (Operation::Ready, "/ready")] {
        let response = get(server.address, path);
        assert_eq!(response.status, 503);
        document.check(operation, "503", "application/json", &response.json());
    }
}
