//! Work on the texts of clients: reading bodies, rendering conversations, tokenizing. It takes time in proportion to the
//! text, seconds for some megabytes, so it is done off the thread that serves connections and streams.

use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::ApiError;

/// Largest body, in bytes, that never waits for larger ones.
const SHORT: usize = 64 * 1024;

/// Bounds how much of that work is done at a time.
#[derive(Debug)]
pub(super) struct TextWorkers {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl TextWorkers {
    /// As many workers as there are cores, for short and for long texts each.
    pub(super) fn new() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self { short: Arc::new(Semaphore::new(cores)), long: Arc::new(Semaphore::new(cores)) }
    }

    /// Does work on a body of `bytes`. When the client goes away before the work begins, it never does.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let room = if bytes <= SHORT { &self.short } else { &self.long };
        // Nobody closes it.
        let permit = Arc::clone(room).acquire_owned().await.map_err(|_| ApiError::draining())?;
        let done = spawn_blocking(move || {
            let _until_the_end = permit;
            work()
        });
        done.await.unwrap_or_else(|_| Err(ApiError::panicked()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Poll;

    use super::*;
    use crate::server::testing::{app, ask, serve};

    /// Takes every worker for long texts until the senders are gone.
    fn block(workers: &Arc<TextWorkers>) -> Vec<std::sync::mpsc::Sender<()>> {
        let cores = workers.long.available_permits();
        let hold = |_| {
            let (sender, receiver) = std::sync::mpsc::channel::<()>();
            let workers = Arc::clone(workers);
            tokio::spawn(async move {
                let work = move || {
                    let _closed = receiver.recv();
                    Ok(())
                };
                workers.run(SHORT + 1, work).await
            });
            sender
        };
        (0..cores).map(hold).collect()
    }

    #[test]
    fn other_requests_are_answered_while_a_slow_text_is_worked_on() {
        serve(app(""), |app, address| async move {
            let held = block(&app.texts);
            let body = format!(r#"{{"prompt": "{}"}}"#, "a".repeat(SHORT));
            let slow = tokio::spawn(async move { ask(address, "POST", "/tokenize", &body).await });
            // The long text is read and waits for a worker.
            while app.metrics.in_flight.get() == 0 || app.texts.long.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            assert!(ask(address, "GET", "/health", "").await.starts_with("HTTP/1.1 200 "));
            let short =
                ask(address, "POST", "/generate", r#"{"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}"#);
            assert!(short.await.starts_with("HTTP/1.1 200 "), "short texts do not wait for long ones");
            assert!(!slow.is_finished());
            drop(held);
            // Emulated models have no text, and a worker has found that out.
            assert!(slow.await.expect("no panic").starts_with("HTTP/1.1 501 "));
        });
    }

    #[test]
    fn a_client_that_goes_away_while_it_waits_costs_nothing() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let workers = Arc::new(TextWorkers::new());
            let held = block(&workers);
            while workers.long.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            let began = Arc::new(AtomicBool::new(false));
            let mark = Arc::clone(&began);
            {
                let mut waiting = pin!(workers.run(SHORT + 1, move || {
                    mark.store(true, Ordering::Release);
                    Ok(())
                }));
                poll_fn(|context| {
                    assert!(waiting.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
            }
            drop(held);
            workers.run(SHORT + 1, || Ok(())).await.expect("there is room again");
            assert!(!began.load(Ordering::Acquire));
        });
    }

    #[test]
    fn work_that_panics_is_an_error_and_gives_its_place_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let workers = TextWorkers::new();
            for _ in 0..=workers.short.available_permits() {
                let result: Result<(), ApiError> = workers.run(0, || panic!("a test wants this")).await;
                assert_eq!(result.expect_err("an error").status, 500);
            }
        });
    }
}
