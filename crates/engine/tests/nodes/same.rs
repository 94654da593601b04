//! Two nodes do what one process does.

use serde_json::json;
use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_engine::config::ThresholdConfig;

use crate::pair::{Pair, collect, expected, held, peer, requests, run, wait_until};

fn methods() -> Vec<RoutingConfig> {
    // Rules keep state that travels with the request.
    let rules = json!({"rules": {
        "small": [{"when": "position % 4 == 3", "to": "large", "drop": true}],
        "large": {"when": "run_length >= 1", "to": "small"},
    }});
    vec![
        RoutingConfig::new("random", json!({"semantics": "borrow", "probability": 0.6})),
        RoutingConfig::new("random", json!({"semantics": "mixture"})),
        RoutingConfig::new("rstitch", json!({"entropy_threshold": 0.4, "return_threshold": 0.6})),
        RoutingConfig::new("query", json!({"large_fraction": 0.5})),
        RoutingConfig::new("rule", rules),
    ]
}

#[test]
fn steps_tokens_and_ends_are_those_of_one_process() {
    let requests = requests(8, 20);
    for routing in methods() {
        let method = routing.method.clone();
        let pair = Pair::new(routing);
        let want = expected(&pair.config, &requests);
        assert!(want.iter().any(|answer| answer.3 > 0), "{method}: nothing was handed over");
        let (small, large) = pair.nodes();
        assert_eq!(run(&small, &requests), want, "{method}");
        wait_until("all blocks are free", || held(&small) == 0 && held(&large) == 0);
        assert_eq!((peer(&small).losses, peer(&large).losses), (0, 0), "{method}");
    }
}

#[test]
fn thresholds_and_the_number_of_active_requests_are_those_of_one_process() {
    let mut pair = Pair::new(RoutingConfig::new("random", json!({"semantics": "borrow", "probability": 0.5})));
    pair.config.batching.thresholds = ThresholdConfig::Fixed(vec![2, 4]);
    let requests = requests(24, 24);
    let want = expected(&pair.config, &requests);
    let (small, large) = pair.nodes();
    assert_eq!(run(&small, &requests), want);
    let stats =
        [&small.stats().models[0], &large.stats().models[1]].map(|stats| (stats.launches_full, stats.launches_timeout));
    // A launch after `max_wait` would mean that a count did not arrive.
    assert!(stats.iter().all(|(full, timeout)| *full > 0 && *timeout == 0), "{stats:?}");
}

#[test]
fn cancelled_requests_are_freed_on_both_nodes() {
    let pair = Pair::new(RoutingConfig::new("random", json!({"semantics": "mixture"})));
    let (small, large) = pair.nodes();
    for round in 0..5 {
        let mut streams: Vec<_> =
            requests(8, 200).into_iter().map(|request| small.generate(request).expect("taken")).collect();
        for (index, stream) in streams.iter_mut().enumerate() {
            (0..index * round).for_each(|_| drop(stream.blocking_next()));
        }
        let aborted = streams.pop().expect("eight streams");
        small.abort(aborted.id());
        drop(streams);
        let (.., reason, _) = collect(aborted);
        assert!(["cancelled", "length"].contains(&reason.as_str()), "{reason:?}");
        wait_until("all blocks are free", || held(&small) == 0 && held(&large) == 0);
    }
}
