//! What a soak found.

use std::time::Duration;

use serde::Serialize;

use crate::stats::quantile;

/// Slack of waits: timers, and steps of other requests, come on top of the queue timeout.
const SLACK: Duration = Duration::from_secs(2);
/// Latency of admitted requests may exceed that at capacity by this factor: others are cancelled and prefilled meanwhile.
const SLOWER: f64 = 5.0;

/// Counts, times and the verdict.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// Requests per second that the system can take.
    pub(super) capacity: f64,
    /// Mean latency at capacity.
    pub(super) latency_s: f64,
    pub(super) seed: u64,
    pub(super) load_s: f64,
    pub(super) sent: u64,
    pub(super) refused: u64,
    pub(super) completed: u64,
    pub(super) cancelled: u64,
    pub(super) timed_out: u64,
    pub(super) failed: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// Requests whose tokens are not those of the same request alone.
    pub(super) wrong: u64,
    pub(super) tokens: u64,
    /// Hostile and mistaken requests over HTTP, after the load.
    pub(super) hostile: u64,
    /// What was wrong with their answers.
    pub(super) hostile_wrong: Vec<String>,
    pub(super) held_blocks: usize,
    pub(super) open_requests: usize,
    pub(super) queue_wait_p50_s: f64,
    pub(super) queue_wait_max_s: f64,
    pub(super) latency_p50_s: f64,
    pub(super) latency_p99_s: f64,
    pub(super) latency_max_s: f64,
    pub(super) memory_first_mib: f64,
    pub(super) memory_last_mib: f64,
    pub(super) last_error: Option<String>,
    /// Broken promises, in words.
    pub(super) broken: Vec<String>,
    #[serde(skip)]
    pub(super) queue_waits_s: Vec<f64>,
    #[serde(skip)]
    pub(super) latencies_s: Vec<f64>,
    #[serde(skip)]
    pub(super) memory_mib: Vec<f64>,
}

impl Report {
    /// Sums up, and says which promises were broken. `latency`: mean at capacity.
    pub(super) fn judge(&mut self, queue_timeout: Duration, latency: Duration, max_growth_mib: f64) {
        let quantile = |values: &[f64], q: f64| quantile(values, q).unwrap_or(0.0);
        self.queue_wait_p50_s = quantile(&self.queue_waits_s, 0.5);
        self.queue_wait_max_s = quantile(&self.queue_waits_s, 1.0);
        self.latency_p50_s = quantile(&self.latencies_s, 0.5);
        self.latency_p99_s = quantile(&self.latencies_s, 0.99);
        self.latency_max_s = quantile(&self.latencies_s, 1.0);
        let quarter = self.memory_mib.len() / 4;
        self.memory_first_mib = quantile(&self.memory_mib[quarter..2 * quarter], 0.5);
        self.memory_last_mib = quantile(&self.memory_mib[3 * quarter..], 0.5);
        let ended = self.refused + self.completed + self.cancelled + self.timed_out + self.failed + self.lost;
        let growth = self.memory_last_mib - self.memory_first_mib;
        let wait = (queue_timeout + SLACK).as_secs_f64();
        let longest = wait + SLOWER * latency.as_secs_f64();
        let promises = [
            (self.lost == 0 && ended == self.sent, format!("{} of {} answers were lost", self.lost, self.sent)),
            (self.doubled == 0, format!("{} streams went on after their end", self.doubled)),
            (self.wrong == 0, format!("{} answers differ from those of the same request alone", self.wrong)),
            (self.failed == 0, format!("{} requests failed, the last with {:?}", self.failed, self.last_error)),
            (
                self.hostile_wrong.is_empty(),
                format!("hostile requests were not answered as they must be: {}", self.hostile_wrong.join("; ")),
            ),
            (self.completed > 0, "no request completed under load".into()),
            (self.held_blocks == 0, format!("{} KV blocks are still held", self.held_blocks)),
            (self.open_requests == 0, format!("{} requests are still open", self.open_requests)),
            (self.queue_wait_max_s <= wait, format!("a request waited {:.2} s in the queue", self.queue_wait_max_s)),
            (
                self.latency_max_s <= longest,
                format!("a request took {:.2} s, above {longest:.2} s", self.latency_max_s),
            ),
            (growth <= max_growth_mib, format!("memory grew by {growth:.1} MiB")),
        ];
        self.broken = promises.into_iter().filter(|(kept, _)| !kept).map(|(_, what)| what).collect();
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let seconds = |value: f64| format!("{value:.3}");
        vec![
            ("capacity_rps", format!("{:.2}", self.capacity)),
            ("seed", self.seed.to_string()),
            ("load_s", seconds(self.load_s)),
            ("sent", self.sent.to_string()),
            ("refused", self.refused.to_string()),
            ("completed", self.completed.to_string()),
            ("cancelled", self.cancelled.to_string()),
            ("timed_out", self.timed_out.to_string()),
            ("failed", self.failed.to_string()),
            ("lost", self.lost.to_string()),
            ("doubled", self.doubled.to_string()),
            ("wrong", self.wrong.to_string()),
            ("tokens", self.tokens.to_string()),
            ("hostile", self.hostile.to_string()),
            ("hostile_wrong", self.hostile_wrong.len().to_string()),
            ("held_blocks", self.held_blocks.to_string()),
            ("open_requests", self.open_requests.to_string()),
            ("latency_at_capacity_s", seconds(self.latency_s)),
            ("queue_wait_p50_s", seconds(self.queue_wait_p50_s)),
            ("queue_wait_max_s", seconds(self.queue_wait_max_s)),
            ("latency_p50_s", seconds(self.latency_p50_s)),
            ("latency_p99_s", seconds(self.latency_p99_s)),
            ("latency_max_s", seconds(self.latency_max_s)),
            ("memory_first_mib", format!("{:.1}", self.memory_first_mib)),
            ("memory_last_mib", format!("{:.1}", self.memory_last_mib)),
            ("broken", self.broken.len().to_string()),
        ]
    }

    pub(super) fn write_markdown(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(out, "| figure | value |\n|---|---|")?;
        for (name, value) in self.rows() {
            writeln!(out, "| {name} | {value} |")?;
        }
        for broken in &self.broken {
            writeln!(out, "\nBROKEN: {broken}")?;
        }
        if self.broken.is_empty() {
            writeln!(out, "\nall promises were kept")?;
        }
        Ok(())
    }

    pub(super) fn write_csv(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        let (names, values): (Vec<_>, Vec<_>) = self.rows().into_iter().unzip();
        writeln!(out, "{}\n{}", names.join(","), values.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Report {
        Report {
            sent: 10,
            completed: 6,
            refused: 4,
            queue_waits_s: vec![1.0, 0.5],
            latencies_s: vec![2.0, 1.0],
            memory_mib: vec![50.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 101.0],
            ..Report::default()
        }
    }

    #[test]
    fn every_promise_can_be_broken() {
        let judge = |change: fn(&mut Report)| {
            let mut report = good();
            change(&mut report);
            report.judge(Duration::from_secs(1), Duration::from_secs(1), 10.0);
            report.broken.len()
        };
        assert_eq!(judge(|_| ()), 0);
        let changes: [fn(&mut Report); 10] = [
            |report| report.hostile_wrong.push("no answer".into()),
            |report| report.sent += 1,
            |report| report.doubled = 1,
            |report| report.wrong = 1,
            |report| (report.failed, report.completed) = (1, 5),
            |report| report.held_blocks = 1,
            |report| report.open_requests = 1,
            |report| report.queue_waits_s.push(3.5),
            |report| report.latencies_s.push(9.0),
            |report| report.memory_mib.extend([120.0; 8]),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_eq!(judge(change), 1, "change {number}");
        }
    }
}
