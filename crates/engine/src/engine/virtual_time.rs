//! An engine of emulated models that does not wait: its clock jumps from one event to the next.
//!
//! Clients run on the thread that drives it. They submit requests, wait for streams and sleep; when nobody has anything
//! to do at this instant, the driver of the clients calls [`VirtualEngine::advance`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::launch::{self, MakePolicy, Resolved, core_config, launch_info};
use super::limits::Limits;
use super::load::{emulated_models, runner_options};
use super::plan::{Driving, Plan};
use super::stream::{Hop, Hops};
use super::{EngineError, EngineStats, LaunchInfo, SubmitError};
use crate::adaptation::Adapter;
use crate::config::{Config, EmulatedConfig};
use crate::driver::{Costs, DetachedStates, Due, Round, Stepping, VirtualDriver, VirtualModel};
use crate::profile::{Recorder, Span};
use tokenrouter_core::request::{ModelIndex, Request, RequestId, StreamEvent};
use tokenrouter_core::routing::registry::{self, BuiltPolicy, SystemView};
use tokenrouter_core::scheduler::Core;

/// An event of a request's stream, and when it came.
pub type Timed = (Duration, StreamEvent);

/// All events of a request, once it has ended; an error when the engine is gone, or nothing is left to happen.
pub type VirtualStream = oneshot::Receiver<Vec<Timed>>;

/// A running routed system of emulated models, in virtual time.
pub struct VirtualEngine {
    names: Vec<String>,
    entry: ModelIndex,
    limits: Limits,
    /// What a hop to each model costs.
    hops: Vec<HopCost>,
    detached: Option<Arc<DetachedStates>>,
    info: LaunchInfo,
    state: RefCell<State>,
}

/// What changes while it runs.
struct State {
    driver: VirtualDriver,
    open: HashMap<RequestId, Open>,
    timers: HashMap<u64, oneshot::Sender<()>>,
    next_id: u64,
    adaptation: Option<Adaptation>,
    /// Events that are being handed out; kept for its room.
    events: Vec<(RequestId, StreamEvent)>,
}

/// A request that has not ended.
struct Open {
    events: Vec<Timed>,
    ended: oneshot::Sender<Vec<Timed>>,
    /// Where its client takes it from model to model.
    hops: Option<Hops>,
}

/// With `thresholds: adaptive`.
struct Adaptation {
    adapter: Adapter,
    period: Duration,
    next: Duration,
}

#[derive(Debug, Clone, Copy)]
struct HopCost {
    once: Duration,
    ns_per_token: f64,
}

impl HopCost {
    fn of(&self, request: &Request) -> Duration {
        self.once + Duration::from_nanos((self.ns_per_token * request.prompt.len() as f64) as u64)
    }
}

impl VirtualEngine {
    /// An idle engine at time zero.
    ///
    /// # Errors
    /// As [`super::Engine::launch`]; models that are not emulated are refused.
    pub fn launch(config: &Config) -> Result<Self, EngineError> {
        Self::launch_with(config, &|view| registry::build(&config.routing, view))
    }

    /// Like [`Self::launch`], with a policy that is not in the registry.
    ///
    /// # Errors
    /// As [`Self::launch`].
    pub fn launch_with(config: &Config, make: &dyn Fn(&SystemView) -> BuiltPolicy) -> Result<Self, EngineError> {
        let plan = Plan::new(config)?;
        if let Some((name, _)) = config.models.iter().find(|(_, model)| model.emulated.is_none()) {
            return Err(EngineError::Unusable(format!(
                "virtual time is for emulated models, and model `{name}` is none (`emulated: {{latency_ms: ...}}`)"
            )));
        }
        Self::carry_out(&plan, config, make)
    }

    fn carry_out(plan: &Plan, config: &Config, make: MakePolicy<'_>) -> Result<Self, EngineError> {
        let resolved = launch::resolve(plan, config, &[], make)?;
        let Resolved { common, policy, thresholds, kv_blocks, .. } = &resolved;
        let options = runner_options(config, &**policy, common, (*kv_blocks, config.kv.block_size))?;
        let (shared, detached) = launch::detached(plan, policy);
        let profiles = || config.models.values().filter_map(|model| model.emulated.as_ref());
        let runners = emulated_models(config, &options).into_iter().zip(profiles()).enumerate();
        let models = runners.map(|(model, (runner, profile))| {
            let core = Core::new(core_config(plan, config, model, &resolved), Arc::clone(&shared));
            let recorder = config.system.profile.then(Recorder::default);
            VirtualModel::new(core, runner, costs(profile), recorder)
        });
        let rounds = plan.driving == Driving::Lockstep;
        let stepping = if rounds { Stepping::Rounds(Round::default()) } else { Stepping::Each };
        let adaptation = plan.adaptation.map(|period| {
            let adapter = Adapter::new(config, Arc::clone(thresholds));
            Adaptation { adapter, period, next: period }
        });
        let state = State {
            driver: VirtualDriver::new(models.collect(), plan.entry, stepping),
            open: HashMap::new(),
            timers: HashMap::new(),
            next_id: 0,
            adaptation,
            events: Vec::new(),
        };
        Ok(Self {
            names: config.model_names(),
            entry: plan.entry,
            limits: launch::limits(plan, &resolved),
            hops: profiles().map(hop_cost).collect(),
            detached,
            info: LaunchInfo { virtual_time: true, ..launch_info(plan, config, &resolved) },
            state: RefCell::new(state),
        })
    }

    /// Takes a request at this instant. Its stream is there when it has ended; nobody can cancel it.
    ///
    /// # Errors
    /// As [`super::Engine::generate`].
    pub fn generate(&self, request: Request) -> Result<VirtualStream, SubmitError> {
        let mut state = self.state.borrow_mut();
        let request = self.limits.check(request, state.open.len())?;
        let id = RequestId(state.next_id);
        state.next_id += 1;
        let (ended, stream) = oneshot::channel();
        let hops = self.detached.is_some().then(|| Hops::new(&request, self.entry));
        let events = Vec::with_capacity(request.sampling.max_tokens + 1);
        state.open.insert(id, Open { events, ended, hops });
        state.driver.arrive(self.entry, id, Arc::new(request));
        self.hand_out(&mut state);
        Ok(stream)
    }

    /// Something to wait for that comes at `time`.
    pub fn timer(&self, time: Duration) -> oneshot::Receiver<()> {
        let mut state = self.state.borrow_mut();
        let (rung, timer) = oneshot::channel();
        let key = state.next_id;
        state.next_id += 1;
        state.timers.insert(key, rung);
        state.driver.schedule(time, Due::Timer(key));
        timer
    }

    /// Launches what is due, and lets everything of the next instant happen; the clock stays where it is when launching has
    /// left something for clients. False when nothing is left: then requests that are still open never end, and their
    /// streams are closed.
    pub fn advance(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let State { driver, adaptation, .. } = &mut *state;
        driver.launch();
        if !driver.events.is_empty() {
            self.hand_out(&mut state);
            return true;
        }
        if let (Some(adaptation), Some(time)) = (adaptation, driver.next_time()) {
            adaptation.follow(driver, time);
        }
        if !state.driver.advance() {
            state.open.clear();
            return false;
        }
        self.hand_out(&mut state);
        true
    }

    /// Gives clients what is for them.
    fn hand_out(&self, state: &mut State) {
        let State { driver, open, timers, events, .. } = state;
        for key in driver.rung.drain(..) {
            // Whoever gave up waiting is gone.
            let _gone = timers.remove(&key).map(|rung| rung.send(()));
        }
        std::mem::swap(events, &mut driver.events);
        let now = driver.now();
        for (id, event) in events.drain(..) {
            let Some(request) = open.get_mut(&id) else { continue };
            let event = match request.hops.as_mut().map(|hops| hops.note(id, event.clone())) {
                None => event,
                Some(Hop::Event(event)) => event,
                Some(Hop::GivenUp(reason, stats)) => StreamEvent::Finished(reason, stats),
                Some(Hop::GoOn(to, request)) => {
                    driver.schedule(now + self.hops[to].of(&request), Due::Request(to, id, request));
                    continue;
                }
            };
            let ends = matches!(event, StreamEvent::Finished(..));
            request.events.push((now, event));
            if ends && let Some(Open { events, ended, .. }) = open.remove(&id) {
                if let Some(detached) = &self.detached {
                    detached.forget(id);
                }
                let _gone = ended.send(events);
            }
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Duration {
        self.state.borrow().driver.now()
    }

    /// Counters, up to now.
    pub fn stats(&self) -> EngineStats {
        let mut state = self.state.borrow_mut();
        EngineStats {
            names: self.names.clone(),
            held_blocks: state.driver.held().map(|(blocks, _)| blocks).collect(),
            models: state.driver.stats(),
            open_requests: state.open.len(),
        }
    }

    /// Whether no model knows of any request.
    pub fn is_idle(&self) -> bool {
        self.state.borrow().driver.held().all(|(_, empty)| empty)
    }

    /// What every model did when; empty without `system.profile`.
    pub fn profile(&self) -> Vec<Vec<Span>> {
        self.state.borrow().driver.spans()
    }

    /// What was decided at launch.
    pub fn info(&self) -> &LaunchInfo {
        &self.info
    }

    /// Model names, in order.
    pub fn model_names(&self) -> &[String] {
        &self.names
    }

    /// Index of the model at which requests start.
    pub fn entry_index(&self) -> ModelIndex {
        self.entry
    }
}

impl std::fmt::Debug for VirtualEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualEngine").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Adaptation {
    /// Reconsiders the thresholds at every time before `until` at which the thread of a real engine would.
    fn follow(&mut self, driver: &mut VirtualDriver, until: Duration) {
        while self.next < until {
            driver.wait_until(self.next);
            self.next += self.period;
            self.adapter.observe(&driver.stats());
            match self.adapter.reconsider(&|| false) {
                Ok(None) => {}
                Ok(Some(change)) => driver.set_thresholds(&change.table),
                Err(error) => {
                    tracing::warn!(target: "tokenrouter", "thresholds stay as they are, the throughput model says: {error}");
                }
            }
            // Smaller thresholds may launch what waits.
            driver.launch();
        }
    }
}

fn costs(profile: &EmulatedConfig) -> Costs {
    Costs { step: millis(profile.step_overhead_ms), prefix_ns_per_token: profile.prefix_ms_per_token * 1e6 }
}

fn hop_cost(profile: &EmulatedConfig) -> HopCost {
    HopCost { once: millis(profile.hop_ms), ns_per_token: profile.hop_ms_per_token * 1e6 }
}

fn millis(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}
