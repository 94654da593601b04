//! The reference results of the repository: tables and sentences follow from the rows beside them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

type Row = BTreeMap<String, String>;

fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/reference")
}

fn rows(path: &Path) -> Vec<Row> {
    let mut reader = csv::Reader::from_path(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    reader.deserialize().collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn number(row: &Row, column: &str) -> f64 {
    row[column].parse().unwrap_or_else(|_| panic!("`{column}` of {row:?}"))
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-4 * a.abs().max(b.abs()) + 1e-5
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// The runs behind the ablation.
fn runs() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(reference().join("runs")).expect("runs");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).filter(|p| p.is_dir()).collect();
    paths.sort();
    paths
}

#[test]
fn summaries_follow_from_the_requests() {
    let runs = runs();
    assert!(runs.len() >= 10, "{} runs", runs.len());
    for run in runs {
        let requests = rows(&run.join("result.csv"));
        let text = std::fs::read_to_string(run.join("summary.json")).expect("a summary");
        let summary: Value = serde_json::from_str(&text).expect("JSON");
        let sum = |column: &str| requests.iter().map(|row| number(row, column)).sum::<f64>();
        let mean = |column: &str| sum(column) / requests.len() as f64;
        assert_eq!(summary["completed"], requests.len(), "{}", run.display());
        assert_eq!(summary["total_output_tokens"].as_f64(), Some(sum("completion_tokens")));
        for (column, key) in [("ttft_ms", "mean_ttft_ms"), ("tpot_ms", "mean_tpot_ms"), ("e2el_ms", "mean_e2el_ms")] {
            let said = summary["latency"][key].as_f64().expect("a mean");
            assert!(near(said, mean(column)), "{}: {key} {said}", run.display());
        }
        // A trial lasts from its beginning to the end of its last request; the client needs a moment to notice.
        let mut ends: BTreeMap<&str, f64> = BTreeMap::new();
        for row in &requests {
            let end = ends.entry(&row["trial"]).or_default();
            *end = end.max((number(row, "start_ms") + number(row, "e2el_ms")) / 1e3);
        }
        let (seconds, said) = (ends.values().sum::<f64>(), summary["duration"].as_f64().expect("seconds"));
        assert!(said >= seconds && said - seconds < 0.02 * seconds + 0.01, "{}: {said} {seconds}", run.display());
        let throughput = summary["output_throughput"].as_f64().expect("a number");
        assert!(near(throughput, sum("completion_tokens") / said), "{}", run.display());
    }
}

#[test]
fn the_ablation_is_that_of_its_runs() {
    for profile in ["emulated", "demo"] {
        let table = rows(&reference().join(format!("ablation-{profile}.csv")));
        assert!(table.len() >= 8);
        for row in &table {
            let label = format!("{}-{}", row["rung"], row["load"]).to_lowercase().replace([' ', ',', '/'], "");
            let of_cell =
                |run: &PathBuf| run.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&label));
            // Both profiles have cells of the same names, with other flags.
            let same = |run: &PathBuf| {
                let text = std::fs::read_to_string(run.join("summary.json")).expect("a summary");
                let summary: Value = serde_json::from_str(&text).expect("JSON");
                summary["emulated"] == (profile == "emulated")
                    // Means over trials of equal size are means over all requests.
                    && near(summary["latency"]["mean_ttft_ms"].as_f64().unwrap_or_default(), number(row, "mean_ttft_ms"))
            };
            assert!(runs().iter().any(|run| of_cell(run) && same(run)), "{profile}: no run of {label}");
        }
        let words = std::fs::read_to_string(reference().join(format!("ablation-{profile}.md"))).expect("words");
        let ratio = |system: &str, load: &str| {
            let of = |name: &str| {
                let row = table.iter().find(|row| row["rung"] == name && row["load"] == load).expect("a row");
                number(row, "output_throughput")
            };
            of(system) / of("standard")
        };
        let mut loads: Vec<&str> = table.iter().map(|row| row["load"].as_str()).collect();
        loads.dedup();
        let largest = loads.iter().map(|load| ratio("delayed", load)).fold(0.0, f64::max);
        let line =
            words.lines().find(|line| line.starts_with("tokens per second, delayed over standard")).expect("a line");
        assert!(line.contains(&format!(" {largest:.2} (")), "{line}: {largest}");
    }
}

#[test]
fn errors_of_predictions_follow_from_the_points() {
    for profile in ["emulated", "demo"] {
        let points = rows(&reference().join(format!("figure10-{profile}.csv")));
        let errors: Vec<f64> = points
            .iter()
            .map(|row| (number(row, "predicted_tok_s") / number(row, "measured_tok_s") - 1.0).abs())
            .collect();
        let largest = errors.iter().copied().fold(0.0, f64::max);
        let words = std::fs::read_to_string(reference().join(format!("figure10-{profile}.md"))).expect("words");
        let says = format!("median {:.2} %, largest {:.2} %", 100.0 * median(errors), 100.0 * largest);
        assert!(words.contains(&says), "{words}: {says}");
    }
}

/// The table of the README is made of the reference results: mean and half the interval.
#[test]
fn the_readme_has_the_ablation() {
    let readme = std::fs::read_to_string(reference().join("../../README.md")).expect("a README");
    for row in rows(&reference().join("ablation-demo.csv")) {
        let value = |metric: &str, digits: usize| {
            let half = (number(&row, &format!("{metric}_high")) - number(&row, &format!("{metric}_low"))) / 2.0;
            format!("{:.digits$} ± {half:.digits$}", number(&row, metric))
        };
        let line = format!(
            "| {} | {} | {} | {} |",
            row["rung"],
            row["load"],
            value("output_throughput", 0),
            value("mean_tpot_ms", 1)
        );
        assert!(readme.contains(&line), "README.md has no line `{line}`");
    }
}
