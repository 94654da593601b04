//! Connections that break, networks that hold everything back, and nodes that stop.

use std::time::{Duration, Instant};

use serde_json::json;
use tokenrouter_core::FinishReason;
use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_engine::Engine;

use crate::pair::{Pair, address, collect, expected, held, is_up, peer, requests, run, wait_until};
use crate::proxy::Proxy;

fn borrow() -> Pair {
    Pair::new(RoutingConfig::new("random", json!({"semantics": "borrow", "probability": 0.6})))
}

fn behind_a_proxy(pair: &Pair) -> (Engine, Engine, Proxy) {
    let small = pair.small();
    let proxy = Proxy::new(address(&small));
    let large = pair.large(proxy.address);
    wait_until("both nodes are up", || is_up(&small) && is_up(&large));
    (small, large, proxy)
}

#[test]
fn broken_connections_lose_double_and_reorder_nothing() {
    let pair = borrow();
    let requests = requests(16, 40);
    let want = expected(&pair.config, &requests);
    let (small, large, proxy) = behind_a_proxy(&pair);
    // Every few handoffs, and in the middle of them.
    proxy.break_every(9_000);
    for _ in 0..3 {
        assert_eq!(run(&small, &requests), want);
    }
    proxy.break_every(0);
    wait_until("all blocks are free", || held(&small) == 0 && held(&large) == 0);
    assert!(proxy.accepted() > 5, "{} connections", proxy.accepted());
    assert!(peer(&small).sent.1 + peer(&large).sent.1 > 0, "nothing was repeated");
    assert_eq!((peer(&small).losses, peer(&large).losses), (0, 0));
}

#[test]
fn a_short_silence_loses_nothing() {
    let pair = borrow();
    let requests = requests(8, 100);
    let want = expected(&pair.config, &requests);
    let (small, large, proxy) = behind_a_proxy(&pair);
    let mut streams: Vec<_> = requests.iter().map(|request| small.generate(request.clone()).expect("taken")).collect();
    // They are under way.
    streams.iter_mut().for_each(|stream| drop(stream.blocking_next()));
    let before = proxy.accepted();
    proxy.hold(true);
    // Longer than a connection may be silent (a third of `peer_timeout`).
    wait_until("a node gives the connection up", || peer(&small).address.is_none() || proxy.accepted() > before);
    proxy.hold(false);
    for (stream, want) in streams.into_iter().zip(want) {
        let (_, tokens, reason, _) = collect(stream);
        // The first event was taken above.
        assert_eq!((tokens, reason), (want.1, want.2));
    }
    assert_eq!((peer(&small).losses, peer(&large).losses), (0, 0));
}

/// Requests that end with an error because the peer was lost.
fn lost(answers: impl IntoIterator<Item = FinishReason>) -> usize {
    answers.into_iter().filter(|reason| *reason == FinishReason::Lost(1)).count()
}

#[test]
fn requests_at_a_peer_that_is_gone_end_with_an_error_and_it_may_come_back() {
    let mut pair = borrow();
    pair.config.system.peer_timeout_ms = 600;
    let requests = requests(8, 150);
    let want = expected(&pair.config, &requests);
    let small = pair.small();
    for round in 0..2 {
        let large = pair.large(address(&small));
        wait_until("the peer is up", || is_up(&small) && is_up(&large));
        // All of it works, whatever was before.
        assert_eq!(run(&small, &requests), want, "round {round}");
        let mut streams: Vec<_> =
            requests.iter().map(|request| small.generate(request.clone()).expect("taken")).collect();
        streams.iter_mut().for_each(|stream| drop(stream.blocking_next()));
        let gone = Instant::now();
        drop(large);
        let ends: Vec<FinishReason> = streams.into_iter().map(|stream| collect(stream).2).collect();
        assert!(gone.elapsed() < Duration::from_secs(5), "{:?}", gone.elapsed());
        assert!(lost(ends.iter().cloned()) > 0, "{ends:?}");
        wait_until("all blocks are free", || held(&small) == 0);
        assert!(!is_up(&small) && small.is_healthy());
        assert_eq!(small.stats().open_requests, 0);
    }
}

#[test]
fn a_restart_that_nobody_noticed_ends_the_requests_that_were_there() {
    let pair = borrow();
    let requests = requests(8, 150);
    let (small, large, proxy) = behind_a_proxy(&pair);
    let mut streams: Vec<_> = requests.iter().map(|request| small.generate(request.clone()).expect("taken")).collect();
    streams.iter_mut().for_each(|stream| drop(stream.blocking_next()));
    drop(large);
    // Long before `peer_timeout`.
    let large = pair.large(proxy.address);
    let ends: Vec<FinishReason> = streams.into_iter().map(|stream| collect(stream).2).collect();
    assert!(lost(ends.iter().cloned()) > 0, "{ends:?}");
    wait_until("the peer is up", || is_up(&small) && is_up(&large));
    wait_until("all blocks are free", || held(&small) == 0 && held(&large) == 0);
    assert_eq!(run(&small, &requests), expected(&pair.config, &requests));
}

#[test]
fn a_restarted_entry_model_finds_its_peer_empty() {
    let pair = borrow();
    let requests = requests(8, 150);
    let (small, large, proxy) = behind_a_proxy(&pair);
    let mut streams: Vec<_> = requests.iter().map(|request| small.generate(request.clone()).expect("taken")).collect();
    streams.iter_mut().for_each(|stream| drop(stream.blocking_next()));
    drop(small);
    let ends: Vec<FinishReason> = streams.into_iter().map(|stream| collect(stream).2).collect();
    assert!(
        ends.iter().all(|end| matches!(end, FinishReason::Lost(_) | FinishReason::Error(_) | FinishReason::Length)),
        "{ends:?}"
    );
    let small = pair.small();
    proxy.set_target(address(&small));
    wait_until("both nodes are up", || is_up(&small) && is_up(&large));
    wait_until("all blocks are free", || held(&large) == 0);
    assert_eq!(run(&small, &requests), expected(&pair.config, &requests));
    wait_until("all blocks are free", || held(&small) == 0 && held(&large) == 0);
}

#[test]
fn both_nodes_free_everything_when_the_network_is_gone_and_go_on_when_it_is_back() {
    let mut pair = borrow();
    pair.config.system.peer_timeout_ms = 600;
    let requests = requests(8, 150);
    let want = expected(&pair.config, &requests);
    let (small, large, proxy) = behind_a_proxy(&pair);
    let mut streams: Vec<_> = requests.iter().map(|request| small.generate(request.clone()).expect("taken")).collect();
    streams.iter_mut().for_each(|stream| drop(stream.blocking_next()));
    proxy.hold(true);
    let ends: Vec<FinishReason> = streams.into_iter().map(|stream| collect(stream).2).collect();
    assert!(ends.contains(&FinishReason::Lost(1)), "{ends:?}");
    wait_until("both have lost each other", || peer(&small).state == "lost" && peer(&large).state == "lost");
    wait_until("all blocks are free", || held(&small) == 0 && held(&large) == 0);
    // Requests that stay at the entry model could go on; one that wants to leave ends at once.
    let early = run(&small, &requests[..1]);
    assert_eq!(early[0].2, FinishReason::Lost(1));
    proxy.hold(false);
    wait_until("both nodes are up", || is_up(&small) && is_up(&large));
    assert_eq!(run(&small, &requests), want);
    wait_until("all blocks are free", || held(&small) == 0 && held(&large) == 0);
}
