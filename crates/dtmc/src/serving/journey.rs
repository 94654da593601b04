//! What one request does from its admission to its end, and the closed system in which requests end and prompts are read.

use super::linear::visits;
use super::workload::Workload;
use crate::system::row_tokens;
use crate::{Error, Latency, MAX_ROUTING_STATES, System};

/// Steps of one request, on average.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Journey {
    /// Steps at every model until the first token, those that read the prompt included.
    pub(super) first_steps: Vec<f64>,
    /// Prompt tokens read at every model until the first token.
    pub(super) first_tokens: Vec<f64>,
    /// Steps at every model over the whole request.
    pub(super) steps: Vec<f64>,
    /// Steps at every model that only read the prompt.
    pub(super) prompt_steps: Vec<f64>,
    /// Expected tokens written by each model.
    pub(super) tokens: Vec<f64>,
}

/// A system in which requests end and begin, with a routing state for each model's prompt where it takes several steps.
pub(super) struct Serving {
    pub(super) system: System,
    pub(super) journey: Journey,
    pub(super) notes: Vec<String>,
}

/// Everything about one system that does not depend on the number of requests.
struct Parts<'a> {
    system: &'a System,
    commits: Vec<Vec<f64>>,
    models_of: Vec<usize>,
    output: f64,
    /// Expected steps of a request in every state, prompt steps aside.
    steps: Vec<f64>,
    /// Probability that a request ever comes to each model.
    reached: Vec<f64>,
    /// Steps beyond the first that a prompt takes at each model.
    extra: Vec<f64>,
}

/// Puts ends, beginnings and prompts into `system`.
pub(super) fn serving(system: &System, workload: &Workload) -> Result<Serving, Error> {
    // The closed form checks everything once.
    let closed = system.closed(1)?;
    let (models, states) = (closed.models(), closed.routing_states());
    let commits = closed.commits().to_vec();
    let models_of = closed.state_models().to_vec();
    let output = workload.output.mean();
    let largest = commits.iter().zip(&system.routing).flat_map(|(c, p)| c.iter().zip(p));
    if let Some((tokens, _)) = largest.filter(|&(_, &p)| p > 0.0).find(|&(&tokens, _)| tokens > output) {
        let problem = format!("{output} tokens on average, but a step commits {tokens}");
        return Err(Error::option("output tokens", problem, format!("{tokens} or more")));
    }
    let kept: Vec<Vec<f64>> = (0..states)
        .map(|s| (0..states).map(|j| system.routing[s][j] * (1.0 - commits[s][j] / output)).collect())
        .collect();
    let start: Vec<f64> = (0..states).map(|s| f64::from(u8::from(s == 0))).collect();
    let steps = visits(&kept, &start);
    let reached: Vec<f64> = (0..models).map(|model| reach(&kept, &models_of, model)).collect();
    let prompt = workload.prompt.mean();
    let extra = (0..models).map(|_| workload.prompt_steps(prompt) - 1.0).collect();
    let parts = Parts { system, commits, models_of, output, steps, reached, extra };
    let mut notes = Vec::new();
    let (routing, tokens, state_models) = parts.routing(&kept, &mut notes);
    let journey = parts.journey(prompt);
    let latencies_ms = parts.latencies(&closed, workload, &journey);
    let extended = System {
        latencies_ms,
        routing,
        commits: Some(tokens),
        state_models: Some(state_models),
        quantum_ms: system.quantum_ms,
        max_batch: system.max_batch.clone(),
        token_costs: None,
    };
    Ok(Serving { system: extended, journey, notes })
}

/// Probability of coming to `model` from state 0 before the mass of `kept` is gone.
fn reach(kept: &[Vec<f64>], models_of: &[usize], model: usize) -> f64 {
    if models_of[0] == model {
        return 1.0;
    }
    let outside: Vec<Vec<f64>> = kept
        .iter()
        .enumerate()
        .map(|(s, row)| row.iter().map(|&p| if models_of[s] == model { 0.0 } else { p }).collect())
        .collect();
    let start: Vec<f64> = (0..kept.len()).map(|s| f64::from(u8::from(s == 0))).collect();
    let found = visits(&outside, &start);
    found.iter().zip(models_of).filter(|&(_, &owner)| owner == model).map(|(mass, _)| mass).sum::<f64>().min(1.0)
}

/// Probabilities and tokens towards each state.
#[derive(Clone, Default)]
struct Row {
    mass: Vec<f64>,
    tokens: Vec<f64>,
}

impl Row {
    fn new(states: usize) -> Self {
        Self { mass: vec![0.0; states], tokens: vec![0.0; states] }
    }

    fn add(&mut self, to: usize, mass: f64, tokens: f64) {
        self.mass[to] += mass;
        self.tokens[to] += mass * tokens;
    }

    /// `P` and `C`, the former summing to 1 to the last bit that matters.
    fn split(self) -> (Vec<f64>, Vec<f64>) {
        let sum: f64 = self.mass.iter().sum();
        let commits = self.tokens.iter().zip(&self.mass).map(|(t, m)| if *m > 0.0 { t / m } else { 0.0 }).collect();
        (self.mass.iter().map(|mass| mass / sum).collect(), commits)
    }
}

impl Parts<'_> {
    /// Mean starts of visits to `model` in one request.
    fn visit_starts(&self, kept: &[Vec<f64>], model: usize) -> f64 {
        let into = |s: usize| -> f64 {
            kept[s].iter().zip(&self.models_of).filter(|&(_, &owner)| owner == model).map(|(p, _)| p).sum()
        };
        (0..kept.len()).filter(|&s| self.models_of[s] != model).map(|s| self.steps[s] * into(s)).sum()
    }

    /// `P`, `C` and the models of the states, with ends and prompts in them.
    fn routing(&self, kept: &[Vec<f64>], notes: &mut Vec<String>) -> (Vec<Vec<f64>>, Vec<Vec<f64>>, Vec<usize>) {
        let (states, entry) = (kept.len(), self.models_of[0]);
        let mut state_models = self.models_of.clone();
        // The prompt state of every model that has one.
        let mut prompt_state = vec![None; self.extra.len()];
        for (model, slot) in prompt_state.iter_mut().enumerate() {
            if self.extra[model] <= 0.0 || self.reached[model] < 1e-9 {
                continue;
            }
            if state_models.len() == MAX_ROUTING_STATES {
                notes.push(format!("model {model} has no routing state left for its prompts: they are not in X(n)"));
                continue;
            }
            *slot = Some(state_models.len());
            state_models.push(model);
        }
        let total = state_models.len();
        let mut rows = vec![Row::new(total); total];
        let mut inflow = vec![vec![0.0; states]; self.extra.len()];
        for s in 0..states {
            for j in 0..states {
                let (p, tokens, target) = (self.system.routing[s][j], self.commits[s][j], self.models_of[j]);
                let stays = kept[s][j];
                let first = match prompt_state[target] {
                    Some(_) if target != entry && self.models_of[s] != target => {
                        inflow[target][j] += self.steps[s] * stays;
                        (self.reached[target] / self.visit_starts(kept, target).max(1e-300)).min(1.0)
                    }
                    _ => 0.0,
                };
                if let Some(prompts) = prompt_state[target] {
                    rows[s].add(prompts, stays * first, tokens);
                }
                rows[s].add(j, stays * (1.0 - first), tokens);
                let begins = prompt_state[entry].unwrap_or(0);
                rows[s].add(begins, p * tokens / self.output, tokens);
            }
        }
        for (model, state) in prompt_state.iter().enumerate() {
            let Some(state) = *state else { continue };
            let leave = 1.0 / self.extra[model];
            rows[state].add(state, 1.0 - leave, 0.0);
            if model == entry {
                rows[state].add(0, leave, 0.0);
                continue;
            }
            let all: f64 = inflow[model].iter().sum();
            for (j, part) in inflow[model].iter().enumerate() {
                rows[state].add(j, leave * part / all, 0.0);
            }
        }
        let (routing, commits) = rows.into_iter().map(Row::split).unzip();
        (routing, commits, state_models)
    }

    fn journey(&self, prompt: f64) -> Journey {
        let (models, states) = (self.extra.len(), self.steps.len());
        let silent: Vec<Vec<f64>> = (0..states)
            .map(|s| {
                let row = self.system.routing[s].iter().zip(&self.commits[s]);
                row.map(|(p, tokens)| p * (1.0 - tokens.min(1.0))).collect()
            })
            .collect();
        let start: Vec<f64> = (0..states).map(|s| f64::from(u8::from(s == 0))).collect();
        let before = visits(&silent, &start);
        let by_model = |steps: &[f64]| {
            let mut sums = vec![0.0; models];
            steps.iter().zip(&self.models_of).for_each(|(steps, &model)| sums[model] += steps);
            sums
        };
        let first: Vec<f64> = (0..models).map(|model| reach(&silent, &self.models_of, model)).collect();
        let prompt_steps: Vec<f64> = self.extra.iter().zip(&self.reached).map(|(extra, share)| extra * share).collect();
        let writes =
            |s: usize| -> f64 { self.system.routing[s].iter().zip(&self.commits[s]).map(|(p, c)| p * c).sum() };
        let written: Vec<f64> = (0..states).map(|s| self.steps[s] * writes(s)).collect();
        Journey {
            first_steps: by_model(&before).iter().zip(&first).zip(&self.extra).map(|((a, b), x)| a + b * x).collect(),
            first_tokens: first.iter().map(|share| share * prompt).collect(),
            steps: by_model(&self.steps).iter().zip(&prompt_steps).map(|(steps, more)| steps + more).collect(),
            prompt_steps,
            tokens: by_model(&written),
        }
    }

    /// Latencies with the mean cost of catching up and of prompts in them.
    fn latencies(&self, closed: &crate::ClosedSystem, workload: &Workload, journey: &Journey) -> Vec<Latency> {
        let Some(costs) = &self.system.token_costs else { return self.system.latencies_ms.clone() };
        let prompt = workload.prompt.mean();
        let pieces = workload.prompt_steps(prompt);
        (0..costs.len())
            .map(|model| {
                let (cost, latency) = (costs[model], &self.system.latencies_ms[model]);
                if cost.ms_per_token <= 0.0 {
                    return latency.clone();
                }
                let rows = row_tokens(closed.routing(), &self.commits, &self.models_of, model, cost.cells());
                let with_prompt = self.reached[model] * pieces / journey.steps[model].max(1e-300);
                let piece = (prompt / pieces).max(1.0);
                let rows = rows.mixed(if prompt > 0.0 { with_prompt.min(1.0) } else { 0.0 }, piece);
                let largest = match latency {
                    Latency::Constant(_) => crate::MAX_CONCURRENCY.min(1024),
                    Latency::Table(points) => points.last().map_or(1, |&(batch, _)| batch),
                };
                cost.added(latency, &rows, largest)
            })
            .collect()
    }
}
