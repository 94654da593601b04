//! Connections: how many, how long a client may take to say what it wants, and how they end at a shutdown.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::config::ServerConfig;

/// Pause after an accept that failed, as when there are no file descriptors left.
const PAUSE: Duration = Duration::from_millis(50);
/// Headers of one request.
const MAX_HEADERS: usize = 100;
/// Time that connections get to send the ends of their responses once everything else is over.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serves connections until `closing` is true, then lets them end their responses.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    config: &ServerConfig,
    mut closing: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(config.max_connections));
    let builder = builder(config);
    let mut tasks = JoinSet::new();
    loop {
        // A full house leaves clients in the operating system's queue, which is bounded too.
        let accepted = tokio::select! {
            _ = closing.wait_for(|closing| *closing) => break,
            accepted = accept(&listener, &room) => accepted,
            Some(_ended) = tasks.join_next() => continue,
        };
        let Some((stream, permit)) = accepted else { continue };
        let connection = one(builder.clone(), stream, router.clone(), closing.clone());
        tasks.spawn(async move {
            connection.await;
            drop(permit);
        });
    }
    drop(listener);
    let all = async { while tasks.join_next().await.is_some() {} };
    // What has not been read by then is not going to be.
    let _in_time = tokio::time::timeout(LAST_WORDS, all).await;
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(PAUSE).await;
            None
        }
    }
}

fn builder(config: &ServerConfig) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(config.header_timeout_s))
        .max_buf_size(config.max_header_kib * 1024)
        .max_headers(MAX_HEADERS);
    builder
}

async fn one(builder: http1::Builder, stream: TcpStream, router: Router, mut closing: watch::Receiver<bool>) {
    // Tokens are small and must not wait for each other.
    let _best_effort = stream.set_nodelay(true);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    tokio::select! {
        _gone = connection.as_mut() => return,
        _ = closing.wait_for(|closing| *closing) => connection.as_mut().graceful_shutdown(),
    }
    let _gone = connection.await;
}
