//! Notes about routing states that requests never reach, or never leave.

/// Adds a note for each model that no request reaches from state 0, and for each closed part that traps requests.
pub(super) fn describe(routing: &[Vec<f64>], state_models: &[usize], models: usize, notes: &mut Vec<String>) {
    let reached = reachable(routing, 0);
    for model in 0..models {
        let mut states = (0..routing.len()).filter(|&state| state_models[state] == model).peekable();
        if states.peek().is_none() {
            notes
                .push(format!("model {model} has no routing state: it is always idle and its threshold has no effect"));
        } else if states.all(|state| !reached[state]) {
            notes.push(format!(
                "model {model} is never reached from state 0: it is always idle and its threshold has no effect"
            ));
        }
    }
    let fixed = |state: usize| routing[state].iter().filter(|&&p| p > 0.0).count() == 1;
    if routing.len() > 1 && (0..routing.len()).filter(|&state| reached[state]).all(fixed) && routing[0][0] == 0.0 {
        notes.push(
            "routing is deterministic, so batches never mix: the long run depends on the start, which is every request \
             waiting in state 0"
                .to_owned(),
        );
    }
    for state in (0..routing.len()).filter(|&state| reached[state]) {
        let back = reachable(routing, state);
        let left_behind: Vec<String> =
            (0..routing.len()).filter(|&other| reached[other] && !back[other]).map(|other| other.to_string()).collect();
        if !left_behind.is_empty() {
            notes.push(format!(
                "requests in state {state} never return to state(s) {}: the long run describes the system without them",
                left_behind.join(", ")
            ));
        }
    }
}

fn reachable(routing: &[Vec<f64>], from: usize) -> Vec<bool> {
    let mut seen = vec![false; routing.len()];
    let mut stack = vec![from];
    seen[from] = true;
    while let Some(state) = stack.pop() {
        for (next, &probability) in routing[state].iter().enumerate() {
            if probability > 0.0 && !seen[next] {
                seen[next] = true;
                stack.push(next);
            }
        }
    }
    seen
}
