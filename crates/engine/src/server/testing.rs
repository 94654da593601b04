//! A server for unit tests: its shared state stays in their hands.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{ApiKeys, App, connection, router};
use crate::config::Config;
use crate::engine::Engine;

/// A server of one emulated model; `more` is YAML on top of that.
pub(super) fn app(more: &str) -> Arc<App> {
    let yaml = format!("models: {{a: {{emulated: {{latency_ms: 1}}}}}}\nrouting: {{method: ensemble}}\n{more}\n");
    let config = Config::from_yaml(&yaml, "test.yaml").unwrap_or_else(|error| panic!("{error}"));
    let engine = Arc::new(Engine::launch(&config).expect("launches"));
    Arc::new(App::new(engine, config.server, ApiKeys::default(), true))
}

/// Runs a test on the thread that serves.
pub(super) fn serve<F: Future<Output = ()>>(app: Arc<App>, test: impl FnOnce(Arc<App>, SocketAddr) -> F) {
    let routes = router(&app);
    serve_routes(app, routes, test);
}

/// The same with other routes.
pub(super) fn serve_routes<F: Future<Output = ()>>(
    app: Arc<App>,
    routes: Router,
    test: impl FnOnce(Arc<App>, SocketAddr) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let closing = watch::Sender::new(false);
        let test = async {
            test(Arc::clone(&app), address).await;
            closing.send_replace(true);
        };
        tokio::join!(connection::serve(listener, routes, &app.config, closing.subscribe()), test);
    });
}

/// The whole response as text.
pub(super) async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("writes");
    stream.write_all(body.as_bytes()).await.expect("writes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("UTF-8");
    answer
}
