//! Progress on stderr: bars on a terminal, elsewhere a line a minute, so that a log tells a long command from a stuck one.

use std::cell::Cell;
use std::io::{IsTerminal as _, Write as _};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two lines.
const EVERY: Duration = Duration::from_secs(60);

/// Something that goes on for a while; derefs to its bar, whose message says what, and whose length is what there is to do.
pub(crate) struct Spinner {
    bar: ProgressBar,
    /// Ends the thread that writes lines when it is dropped.
    _lines: Option<Sender<()>>,
}

impl std::ops::Deref for Spinner {
    type Target = ProgressBar;

    fn deref(&self) -> &ProgressBar {
        &self.bar
    }
}

/// A spinner with a message.
pub(crate) fn spinner(message: &str) -> Spinner {
    shown(None, ProgressStyle::default_spinner(), message)
}

/// A bar with a message, for work that can be counted.
pub(crate) fn counted(total: u64, message: &str) -> Spinner {
    let style = ProgressStyle::with_template("{msg} {bar:32} {pos}/{len} {elapsed}");
    shown(Some(total), style.unwrap_or_else(|_| ProgressStyle::default_bar()), message)
}

fn shown(total: Option<u64>, style: ProgressStyle, message: &str) -> Spinner {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    bar.set_style(style);
    bar.set_message(message.to_owned());
    if bar.is_hidden() {
        return Spinner { _lines: Some(lines(&bar, Instant::now())), bar };
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    Spinner { bar, _lines: None }
}

/// Writes what a bar shows every minute, until the sender is dropped or the bar is finished.
fn lines(bar: &ProgressBar, start: Instant) -> Sender<()> {
    let (sender, ended) = channel();
    let bar = bar.downgrade();
    std::thread::spawn(move || {
        while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
            let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) else { return };
            let _best_effort = writeln!(std::io::stderr(), "{}", line(&bar, start.elapsed()));
        }
    });
    sender
}

fn line(bar: &ProgressBar, elapsed: Duration) -> String {
    let minutes = elapsed.as_secs() / 60;
    match bar.length() {
        Some(total) => format!("{}: {} of {total}, {minutes} min", bar.message(), bar.position()),
        None => format!("{}, {minutes} min", bar.message()),
    }
}

/// Requests of a trial, as they end.
#[derive(Debug)]
pub(crate) struct Requests {
    bar: ProgressBar,
    label: String,
    start: Instant,
    due: Cell<Instant>,
}

/// A bar over requests, with tokens per second in its message.
pub(crate) fn requests(total: u64, label: &str) -> Requests {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let template = "{prefix} [{bar:30}] {pos}/{len} requests, {msg}, ETA {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(label.to_owned());
    let start = Instant::now();
    Requests { bar, label: label.to_owned(), start, due: Cell::new(start + EVERY) }
}

impl Requests {
    /// One more has ended.
    pub(crate) fn one_ended(&self) {
        self.bar.inc(1);
    }

    /// Shows the rate; writes a line where there is no terminal and it is time for one.
    pub(crate) fn show(&self, tokens_per_s: f64) {
        self.bar.set_message(format!("{tokens_per_s:.0} tokens/s"));
        if let Some(line) = self.line(Instant::now(), tokens_per_s).filter(|_| !std::io::stderr().is_terminal()) {
            let _best_effort = writeln!(std::io::stderr(), "{line}");
        }
    }

    /// The line that is due now, if one is.
    fn line(&self, now: Instant, tokens_per_s: f64) -> Option<String> {
        if now < self.due.get() {
            return None;
        }
        self.due.set(now + EVERY);
        let (label, ended) = (&self.label, self.bar.position());
        let total = self.bar.length().unwrap_or_default();
        let minutes = now.duration_since(self.start).as_secs() / 60;
        Some(format!("{label}: {ended}/{total} requests, {tokens_per_s:.0} tokens/s, {minutes} min"))
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_once_a_minute() {
        let progress = requests(16, "async-c4");
        let at = |seconds| progress.start + Duration::from_secs(seconds);
        assert_eq!(progress.line(at(59), 10.0), None);
        progress.one_ended();
        progress.one_ended();
        let line = progress.line(at(60), 153.7).expect("due");
        assert_eq!(line, "async-c4: 2/16 requests, 154 tokens/s, 1 min");
        assert_eq!(progress.line(at(119), 10.0), None);
        assert!(progress.line(at(125), 10.0).expect("due").ends_with("10 tokens/s, 2 min"));
        assert_eq!(progress.line(at(184), 10.0), None, "a minute after the last line");
    }

    #[test]
    fn lines_say_what_is_done_and_since_when() {
        let hour = Duration::from_secs(3600);
        assert_eq!(line(&spinner("loading models"), hour), "loading models, 60 min");
        let bar = counted(1000, "seeds");
        bar.inc(3);
        assert_eq!(line(&bar, hour), "seeds: 3 of 1000, 60 min");
    }
}
