//! `REPORT.md` and `index.html` over all figures.

use std::fmt::Write as _;
use std::path::Path;

use super::Figure;
use crate::files::write_file;
use crate::results::cpu_name;

/// Writes both.
pub(super) fn write(folder: &Path, figures: &[Figure]) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = format!("{}, {cores} cores", cpu_name());
    let mut text = format!("# Figures\n\nMade by `trbench figures` on {machine}.\n");
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Figures</title>\n<style>body{{font:16px/1.5 \
         system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}}img{{max-width:100%;border:1px solid \
         #ddd}}</style></head><body>\n<h1>Figures</h1>\n<p>Made by <code>trbench figures</code> on {}.</p>\n",
        escape(&machine)
    );
    for Figure { name, title, paper, found } in figures {
        let _ = writeln!(
            text,
            "\n## {title} ({name})\n\n![{title}]({name}.svg)\n\n**The paper:** {paper}\n\n**Here:** {found}\n[data]({name}.csv)"
        );
        let _ = writeln!(
            page,
            "<h2>{0} ({1})</h2>\n<img src=\"{1}.svg\" alt=\"{0}\">\n<p><b>The paper:</b> {2}</p>\n<p><b>Here:</b> {3}</p>\n<p><a \
             href=\"{1}.csv\">data</a></p>",
            escape(title),
            escape(name),
            escape(paper),
            escape(found).replace('\n', "<br>")
        );
    }
    page.push_str("</body></html>\n");
    write_file(&folder.join("REPORT.md"), text.as_bytes())?;
    write_file(&folder.join("index.html"), page.as_bytes())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
