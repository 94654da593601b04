//! A client that does no more than it is told: half a request, a header too long, a connection dropped at any point.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

/// A response, or its head and the rest to come.
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
}

/// Sends the head of a request and a body.
pub(crate) fn send(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
    let mut stream = TcpStream::connect(address).expect("connects");
    let host = if headers.iter().any(|(name, _)| *name == "host") { "" } else { "host: localhost\r\n" };
    let mut head = format!("{method} {path} HTTP/1.1\r\n{host}content-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "content-type") {
        head.push_str("content-type: application/json\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    // A server that refuses a body may close before it has read all of it.
    let _refused = stream.write_all(format!("{head}\r\n{body}").as_bytes());
    Response::read(stream)
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    send(address, "GET", path, &[], "")
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    send(address, "POST", path, &[], &body.to_string())
}

impl Response {
    /// Reads the head.
    pub(crate) fn read(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).expect("a status line");
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{line:?}"));
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a header");
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Self { status, headers, reader }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub(crate) fn text(mut self) -> String {
        let length = self.header("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).expect("a body");
        String::from_utf8(body).expect("UTF-8")
    }

    pub(crate) fn json(self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The next event of a stream; none when the stream ended.
    pub(crate) fn event(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            // Lines with the lengths of chunks, and empty ones, say nothing.
            if self.reader.read_line(&mut line).ok()? == 0 || line == "0\r\n" {
                return None;
            }
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                return Some(data.to_owned());
            }
        }
    }

    /// All further events as JSON, and whether `[DONE]` was the last.
    pub(crate) fn events(mut self) -> (Vec<Value>, bool) {
        let mut events = Vec::new();
        while let Some(event) = self.event() {
            if event == "[DONE]" {
                assert_eq!(self.event(), None, "nothing comes after the end");
                return (events, true);
            }
            events.push(serde_json::from_str(&event).expect("JSON"));
        }
        (events, false)
    }

    /// Goes away.
    pub(crate) fn leave(self) {
        let _gone = self.reader.get_ref().shutdown(Shutdown::Both);
    }
}
