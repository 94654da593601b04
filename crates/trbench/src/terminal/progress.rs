//! Progress on stderr, only when it is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A spinner with a message; hidden when stderr is not a terminal.
pub(crate) fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::default_spinner());
    bar.set_message(message.to_owned());
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(120));
    }
    bar
}

/// A bar over requests, with tokens per second in its message.
pub(crate) fn requests(total: u64, label: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let template = "{prefix} [{bar:30}] {pos}/{len} requests, {msg}, ETA {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(label.to_owned());
    bar
}
