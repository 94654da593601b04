//! One cell of a run: a system at a concurrency, measured as often as was asked.

use std::collections::HashSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use serde_json::json;
use tokenrouter_core::routing::replay::Replay;
use tokenrouter_engine::config::ThresholdConfig;
use tokenrouter_engine::{Config, Engine, EngineStats, VirtualEngine};

use super::backend::Backend;
use super::cell::Cell;
use super::judge::{self, Transcript};
use super::load::{self, Load, Outcome, Pace};
use super::log::RunLog;
use super::resume::Earlier;
use super::timeline;
use crate::dataset::Item;
use crate::files::write_file;
use crate::interrupt;
use crate::record::Record;
use crate::results::{self, MANIFEST, Manifest, SUMMARY, Summary};
use crate::spec::RunSpec;
use crate::terminal::{note, say, spinner};
use crate::trials::{Slo, TrialRows};

/// Ids of warm-up requests begin here, so that their draws are not those of measured ones.
const WARM_UP_IDS: u64 = 1 << 40;

/// What all cells have in common.
pub(super) struct Run<'a> {
    pub(super) spec: &'a RunSpec,
    pub(super) items: &'a [Item],
    pub(super) manifest: &'a Manifest,
    pub(super) replay: Option<&'a Replay>,
    /// Whether complete rows of an earlier run are kept.
    pub(super) resumes: bool,
    /// Whether whoever reads stderr wants to know the thresholds of each cell.
    pub(super) tells: bool,
}

/// What was measured so far.
struct Progress {
    /// All trials that were asked for.
    trials: Vec<TrialRows>,
    models: Option<EngineStats>,
    /// Of this process: answers from before an interruption are not kept.
    answers: Vec<Transcript>,
    /// Likewise.
    gaps: Vec<f64>,
    interrupted: bool,
    /// Complete rows that an earlier run has left.
    resumed: usize,
}

impl Run<'_> {
    /// Measures a cell and writes its results; says whether it was interrupted.
    pub(super) fn cell(&self, cell: &Cell, dir: &Path) -> anyhow::Result<(Summary, bool)> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
        let manifest = self.manifest.of(&cell.spec);
        let earlier = if self.resumes { Earlier::read(dir, &manifest)? } else { None };
        let mut progress = Progress::new(earlier.as_ref(), self.spec.trials);
        let judge = cell.config.as_ref().map(|config| judge::find(self.spec, config)).transpose()?.flatten();
        let all = self.items.len() * self.spec.repeats;
        let open: Vec<usize> =
            (0..self.spec.trials).filter(|trial| progress.trials[*trial].records.len() < all).collect();
        if open.is_empty()
            && let Some(summary) = earlier.and_then(|earlier| earlier.summary)
        {
            return Ok((summary, false));
        }
        self.begin(cell, dir, &progress, &manifest)?;
        let mut summary = self.summarise(cell, &progress, None);
        for trial in open {
            progress.interrupted = interrupt::was_asked();
            if progress.interrupted {
                break;
            }
            let backend = self.trial(cell, dir, trial, &mut progress)?;
            summary = self.summarise(cell, &progress, Some(&backend));
            results::write(dir, progress.records(), &summary, &manifest)?;
            if progress.interrupted {
                break;
            }
        }
        summary.interrupted = progress.interrupted;
        if let Some(judge) = judge.filter(|_| !progress.interrupted) {
            summary.judged = judge.judge(&progress.answers)?;
        }
        results::write(dir, progress.records(), &summary, &manifest)?;
        Ok((summary, progress.interrupted))
    }

    /// Stores what is known before anything is measured, so that a process that is killed leaves a run that can be resumed.
    fn begin(&self, cell: &Cell, dir: &Path, progress: &Progress, manifest: &Manifest) -> anyhow::Result<()> {
        RunLog::begin(dir, &progress.records().collect::<Vec<_>>(), self.spec.save_detailed)?;
        write_file(&dir.join(MANIFEST), &serde_json::to_vec_pretty(manifest)?)?;
        if progress.resumed > 0 {
            // The times of the rows that are kept, before others follow them.
            let summary = Summary { interrupted: true, ..self.summarise(cell, progress, None) };
            write_file(&dir.join(SUMMARY), &serde_json::to_vec_pretty(&summary)?)?;
        }
        Ok(())
    }

    /// Measures what is missing of a trial.
    fn trial(&self, cell: &Cell, dir: &Path, trial: usize, progress: &mut Progress) -> anyhow::Result<Backend> {
        let spec = self.spec;
        let backend = self.launch(cell)?;
        self.tell(cell, &backend);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the client")?;
        progress.interrupted = spec.warmup > 0 && runtime.block_on(self.warm_up(&backend, cell)).interrupted;
        if progress.interrupted {
            return Ok(backend);
        }
        let before = backend.stats();
        let done: HashSet<u64> = progress.trials[trial].records.iter().map(|record| record.id).collect();
        let log = RunLog::open(dir, spec.save_detailed)?;
        let load = Load {
            items: self.items,
            repeats: spec.repeats,
            first_id: 0,
            trial,
            done: &done,
            pace: self.pace(cell, &done, spec.seed.wrapping_add(trial as u64)),
            log: Some(&log),
            thresholds: &thresholds_of_rows(cell, &backend),
            all_large: cell.is_large,
            label: if spec.trials > 1 { format!("{}, trial {}", cell.label, trial + 1) } else { cell.label.clone() },
        };
        let outcome = runtime.block_on(load::drive(&backend, &load, spec));
        log.finish()?;
        if spec.trace {
            crate::trace::write(dir, &outcome.traces)?;
        }
        if let Some((names, _)) = backend.models().filter(|_| spec.timeline) {
            timeline::write(dir, &names, &backend.spans())?;
        }
        add_models(&mut progress.models, backend.stats(), before);
        progress.add(trial, outcome);
        Ok(backend)
    }

    /// Says under which thresholds a cell runs.
    fn tell(&self, cell: &Cell, backend: &Backend) {
        let thresholds = backend.thresholds();
        if !self.tells || thresholds.len() < 2 {
            return;
        }
        let why = cell.shrunk.as_ref().map(|asked| {
            let requests = cell.concurrency;
            format!(": {asked:?} of the configuration, shrunk to be feasible (sum(B_i - 1) < {requests})")
        });
        say(&format!("{}: thresholds {thresholds:?}{}", cell.label, why.unwrap_or_default()));
    }

    fn launch(&self, cell: &Cell) -> anyhow::Result<Backend> {
        let config = match &cell.config {
            Some(config) if self.spec.endpoint.is_empty() => config,
            config => return Backend::servers(self.spec, config.as_ref()),
        };
        let bar = spinner("loading models");
        let start = Instant::now();
        let mut config = config.clone();
        config.system.profile |= self.spec.timeline;
        let backend = match (self.spec.virtual_time, self.replay) {
            (false, Some(replay)) => {
                Backend::Engine(Arc::new(Engine::launch_with(&config, &|_| Ok(Box::new(replay.clone())))?))
            }
            (false, None) => Backend::Engine(Arc::new(Engine::launch(&config)?)),
            (true, Some(replay)) => {
                Backend::Virtual(Rc::new(VirtualEngine::launch_with(&config, &|_| Ok(Box::new(replay.clone())))?))
            }
            (true, None) => Backend::Virtual(Rc::new(VirtualEngine::launch(&config)?)),
        };
        bar.finish_and_clear();
        for line in backend.notes() {
            note(line);
        }
        note(&format!("{}: loaded in {:.1} s", cell.label, start.elapsed().as_secs_f64()));
        Ok(backend)
    }

    /// Requests that are not measured: other prompts of the same lengths, other draws, the same concurrency.
    async fn warm_up(&self, backend: &Backend, cell: &Cell) -> Outcome {
        let items: Vec<Item> = (self.items.iter().cycle().take(self.spec.warmup))
            .map(|item| Item { id: item.id.clone(), turn: 1, prompt: item.prompt.reversed() })
            .collect();
        let load = Load {
            items: &items,
            repeats: 1,
            first_id: WARM_UP_IDS,
            trial: 0,
            done: &HashSet::new(),
            pace: Pace::Closed(cell.concurrency),
            log: None,
            thresholds: "",
            all_large: false,
            label: format!("{}, warm-up", cell.label),
        };
        load::drive(backend, &load, self.spec).await
    }

    fn pace(&self, cell: &Cell, done: &HashSet<u64>, seed: u64) -> Pace {
        let Some(rate) = self.spec.rate else { return Pace::Closed(cell.concurrency) };
        let mut times = self.spec.arrivals.times(rate, load::session_count(self.items) * self.spec.repeats, seed);
        if !done.is_empty() {
            // Nobody waits for arrivals that were before the interruption.
            let first = load::first_open(self.items, self.spec.repeats, done).unwrap_or_default();
            let shift = first.checked_sub(1).and_then(|before| times.get(before).copied()).unwrap_or_default();
            times.iter_mut().for_each(|time| *time = time.saturating_sub(shift));
        }
        Pace::Open(times)
    }

    /// Totals so far; without a backend, those of rows that were kept.
    fn summarise(&self, cell: &Cell, progress: &Progress, backend: Option<&Backend>) -> Summary {
        let spec = self.spec;
        let models = progress.models.as_ref().map(|stats| results::model_summaries(stats, None));
        let slo = Slo { ttft_ms: spec.slo_ttft_ms, tpot_ms: spec.slo_tpot_ms, e2el_ms: spec.slo_e2el_ms };
        let emulated = cell.config.as_ref().is_some_and(Config::is_emulated);
        let info =
            backend.map_or_else(|| json!({"emulated": emulated, "virtual_time": spec.virtual_time}), Backend::info);
        let mut summary = Summary::new(&cell.label, progress.measured(), slo, models, info);
        summary.max_concurrency = cell.concurrency;
        summary.thresholds = backend.map(Backend::thresholds).unwrap_or_default().to_vec();
        summary.interrupted = progress.interrupted;
        summary.load = spec.load();
        summary.warmup = spec.warmup;
        summary.ungradable = self.items.iter().filter(|item| item.prompt.ungradable).count();
        summary.entry = cell.config.as_ref().map_or(0, Config::entry_index);
        summary.resumed = progress.resumed;
        summary.keep_percentiles(&spec.percentile_metrics, &progress.gaps);
        summary
    }
}

impl Progress {
    /// What an earlier run has left of some trials.
    fn new(earlier: Option<&Earlier>, trials: usize) -> Self {
        let trials: Vec<TrialRows> =
            (0..trials).map(|trial| earlier.map(|earlier| earlier.trial(trial)).unwrap_or_default()).collect();
        let resumed = trials.iter().map(|trial| trial.records.len()).sum();
        Self { trials, models: None, answers: Vec::new(), gaps: Vec::new(), interrupted: false, resumed }
    }

    fn add(&mut self, trial: usize, outcome: Outcome) {
        self.interrupted = outcome.interrupted;
        self.answers.extend(outcome.answers);
        self.gaps.extend(outcome.gaps);
        let rows = &mut self.trials[trial];
        rows.records.extend(outcome.records);
        rows.records.sort_unstable_by_key(|record| record.id);
        rows.duration += outcome.duration;
        rows.client_busy += outcome.client_busy;
    }

    /// The trials up to the last one that has rows.
    fn measured(&self) -> &[TrialRows] {
        let last = self.trials.iter().rposition(|trial| !trial.records.is_empty());
        &self.trials[..last.map_or(0, |last| last + 1)]
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        self.trials.iter().flat_map(|trial| &trial.records)
    }
}

/// The thresholds as rows name them.
fn thresholds_of_rows(cell: &Cell, backend: &Backend) -> String {
    let adaptive = |config: &Config| config.batching.thresholds == ThresholdConfig::Adaptive;
    if cell.config.as_ref().is_some_and(adaptive) && backend.thresholds().len() > 1 {
        return "adaptive".into();
    }
    backend.thresholds().iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// Adds what an engine counted between two snapshots.
fn add_models(sum: &mut Option<EngineStats>, after: Option<EngineStats>, before: Option<EngineStats>) {
    let (Some(mut counted), Some(before)) = (after, before) else { return };
    for (model, before) in counted.models.iter_mut().zip(&before.models) {
        *model = model.since(before);
    }
    match sum {
        None => *sum = Some(counted),
        Some(sum) => sum.models.iter_mut().zip(&counted.models).for_each(|(sum, model)| sum.add(model)),
    }
}
