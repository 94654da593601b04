//! A trace for the terminal.

use std::fmt::Write as _;

use super::RequestTrace;

/// ANSI colours by model: the terminal's own foreground for the first, then orange, blue, green, from a palette that
/// colour-blind readers can tell apart.
const COLORS: [&str; 4] = ["\x1b[39m", "\x1b[38;5;208m", "\x1b[38;5;33m", "\x1b[38;5;36m"];
const DROPPED: &str = "\x1b[2;9m";
const RESET: &str = "\x1b[0m";

/// The text by origin, then one line per switch. Without colour, models are named where they change and dropped
/// candidates are in brackets.
pub(super) fn render(trace: &RequestTrace, color: bool) -> String {
    let mut out = format!("{}\n", trace.title());
    if color {
        let name = |(index, name): (usize, &String)| format!("{}{name}{RESET}", COLORS[index % COLORS.len()]);
        let names: Vec<String> = trace.models.iter().enumerate().map(name).collect();
        let _ = writeln!(out, "{} {DROPPED}dropped{RESET}", names.join(" "));
    }
    out.push('\n');
    let mut writer = None;
    for step in &trace.steps {
        let record = step.record;
        if color {
            let style = if record.committed { COLORS[record.model % COLORS.len()] } else { DROPPED };
            let _ = write!(out, "{style}{}{RESET}", visible(&step.text, true));
            continue;
        }
        if writer != Some(record.model) {
            let _ = write!(out, "<{}>", trace.models[record.model]);
            writer = Some(record.model);
        }
        if record.committed {
            out.push_str(&visible(&step.text, true));
        } else {
            let _ = write!(out, "[-{}-]", visible(&step.text, false));
        }
    }
    out.push_str("\n\n");
    for (index, to) in trace.switches() {
        let step = &trace.steps[index];
        let record = step.record;
        let score = record.score.map(|score| format!(", score {score:.4}")).unwrap_or_default();
        let fate = if record.committed { "committed" } else { "dropped" };
        let _ = writeln!(
            out,
            "{:>6}  {} -> {}{score}, {fate} {:?}",
            record.position, trace.models[record.model], trace.models[to], step.text
        );
    }
    out
}

/// Text without control characters; line breaks only where they are wanted.
fn visible(text: &str, breaks: bool) -> String {
    let show = |c: char| match c {
        '\n' if breaks => "\n".to_owned(),
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.chars().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{step, trace};
    use super::*;

    #[test]
    fn text_names_models_and_shows_what_was_dropped() {
        let trace = trace(vec![
            step(0, "One", true, 0, Some(0.1)),
            step(0, " two\n", false, 1, Some(2.5)),
            step(1, " 2\x1b[31m", true, 0, None),
        ]);
        let plain = render(&trace, false);
        assert!(plain.contains("<small>One[- two\\n-]<large> 2\\u{1b}[31m"), "{plain}");
        assert!(plain.contains("1  small -> large, score 2.5000, dropped \" two\\n\""), "{plain}");
        assert!(plain.starts_with("request 0 (item): tokens 1 by small, 1 by large; 2 switches, 1 dropped"), "{plain}");
        let colored = render(&trace, true);
        assert!(colored.contains("\x1b[38;5;208m 2") && !colored.contains("\x1b[31m"));
    }
}
