//! One cell of a run: a system at a concurrency, measured as often as was asked.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use tokenrouter_core::routing::replay::Replay;
use tokenrouter_engine::{Engine, EngineStats};

use super::backend::Backend;
use super::cell::Cell;
use super::judge::{self, Transcript};
use super::load::{self, Load, Outcome, Pace};
use super::profile;
use super::resume::Earlier;
use crate::dataset::Item;
use crate::record::Record;
use crate::results::{self, Manifest, Summary};
use crate::spec::RunSpec;
use crate::terminal::{note, spinner};
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
}

/// What was measured so far.
struct Progress {
    trials: Vec<TrialRows>,
    models: Option<EngineStats>,
    /// Of this process: answers from before an interruption are not kept.
    answers: Vec<Transcript>,
    interrupted: bool,
}

impl Run<'_> {
    /// Measures a cell and writes its results; says whether it was interrupted.
    pub(super) fn cell(&self, cell: &Cell, dir: &Path) -> anyhow::Result<(Summary, bool)> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
        let manifest = self.manifest.of(&cell.spec);
        let earlier = if self.resumes { Earlier::read(dir, &manifest)? } else { None };
        let mut progress = Progress { trials: Vec::new(), models: None, answers: Vec::new(), interrupted: false };
        let judge = cell.config.as_ref().map(|config| judge::find(self.spec, config)).transpose()?.flatten();
        let mut summary = None;
        for trial in 0..self.spec.trials {
            let (rows, done) = earlier.as_ref().map(|earlier| earlier.trial(trial)).unwrap_or_default();
            progress.trials.push(rows);
            if done.len() < self.items.len() * self.spec.repeats {
                let backend = self.trial(cell, dir, &done, &mut progress)?;
                let resumed = earlier.as_ref().map_or(0, |earlier| earlier.summary.completed);
                let mut written = self.summarise(cell, &progress, &backend);
                written.resumed = resumed;
                results::write(dir, progress.records(), &written, &manifest)?;
                summary = Some(written);
            }
            if progress.interrupted {
                break;
            }
        }
        if let (Some(summary), Some(judge), false) = (&mut summary, judge, progress.interrupted) {
            summary.judged = judge.judge(&progress.answers)?;
            results::write(dir, progress.records(), summary, &manifest)?;
        }
        match summary.or(earlier.map(|earlier| earlier.summary)) {
            Some(summary) => Ok((summary, progress.interrupted)),
            None => anyhow::bail!("{}: there is nothing to measure", cell.label),
        }
    }

    /// Measures what is missing of the last trial.
    fn trial(&self, cell: &Cell, dir: &Path, done: &HashSet<u64>, progress: &mut Progress) -> anyhow::Result<Backend> {
        let spec = self.spec;
        let backend = self.launch(cell)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the client")?;
        let trial = progress.trials.len() - 1;
        progress.interrupted = spec.warmup > 0 && runtime.block_on(self.warm_up(&backend, cell)).interrupted;
        if progress.interrupted {
            return Ok(backend);
        }
        let before = backend.stats();
        let load = Load {
            items: self.items,
            repeats: spec.repeats,
            first_id: 0,
            trial,
            done,
            pace: self.pace(cell, done, spec.seed.wrapping_add(trial as u64)),
            label: if spec.trials > 1 { format!("{}, trial {}", cell.label, trial + 1) } else { cell.label.clone() },
        };
        let outcome = runtime.block_on(load::drive(&backend, &load, spec));
        progress.interrupted = outcome.interrupted;
        add_models(&mut progress.models, backend.stats(), before);
        let rows = progress.trials.last_mut().expect("pushed by the caller");
        progress.answers.extend(outcome.answers);
        rows.records.extend(outcome.records);
        rows.records.sort_unstable_by_key(|record| record.id);
        rows.duration += outcome.duration;
        rows.client_busy += outcome.client_busy;
        if spec.trace {
            crate::trace::write(dir, &outcome.traces)?;
        }
        if let (true, Backend::Engine(engine)) = (spec.profile, &backend) {
            profile::write(dir, engine)?;
        }
        Ok(backend)
    }

    fn launch(&self, cell: &Cell) -> anyhow::Result<Backend> {
        let config = match &cell.config {
            Some(config) if self.spec.endpoint.is_empty() => config,
            config => return Backend::servers(self.spec, config.as_ref()),
        };
        let bar = spinner("loading models");
        let start = Instant::now();
        let mut config = config.clone();
        config.system.profile |= self.spec.profile;
        let engine = match self.replay {
            Some(replay) => Engine::launch_with(&config, &|_| Ok(Box::new(replay.clone())))?,
            None => Engine::launch(&config)?,
        };
        bar.finish_and_clear();
        for line in engine.info().models.iter().chain(&engine.info().warnings) {
            note(line);
        }
        note(&format!("{}: loaded in {:.1} s", cell.label, start.elapsed().as_secs_f64()));
        Ok(Backend::Engine(Arc::new(engine)))
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

    fn summarise(&self, cell: &Cell, progress: &Progress, backend: &Backend) -> Summary {
        let spec = self.spec;
        let models = progress.models.as_ref().map(|stats| results::model_summaries(stats, None));
        let slo = Slo { ttft_ms: spec.slo_ttft_ms, tpot_ms: spec.slo_tpot_ms };
        let mut summary = Summary::new(&cell.label, &progress.trials, slo, models, backend.info());
        summary.max_concurrency = cell.concurrency;
        summary.interrupted = progress.interrupted;
        summary.load = spec.load();
        summary.warmup = spec.warmup;
        summary.ungradable = self.items.iter().filter(|item| item.prompt.ungradable).count();
        summary.entry = backend.models().map_or(0, |(_, entry)| entry);
        summary
    }
}

impl Progress {
    fn records(&self) -> impl Iterator<Item = &Record> {
        self.trials.iter().flat_map(|trial| &trial.records)
    }
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
