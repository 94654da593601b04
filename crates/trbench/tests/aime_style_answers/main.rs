//! Checks every answer in `datasets/aime_style.jsonl` against a program that computes it: by enumeration, by dynamic
//! programming or with exact integer and rational arithmetic. One module for each topic, one function for each problem.

use std::collections::BTreeMap;

use serde::Deserialize;

mod algebra;
mod combinatorics;
mod geometry;
mod number_theory;
mod probability;
mod ratio;
mod sequences;

/// A problem's id and the function that computes its answer.
type Checker = (&'static str, fn() -> i128);

const TOPICS: [(&str, &[Checker]); 6] = [
    ("number theory", number_theory::CHECKERS),
    ("combinatorics", combinatorics::CHECKERS),
    ("algebra", algebra::CHECKERS),
    ("geometry", geometry::CHECKERS),
    ("probability", probability::CHECKERS),
    ("sequences", sequences::CHECKERS),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Problem {
    id: String,
    problem: String,
    answer: i128,
    topic: String,
}

/// Everything that is wrong with the text of the data file.
fn faults(jsonl: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut checkers = BTreeMap::new();
    for (topic, list) in TOPICS {
        for &(id, check) in list {
            if checkers.insert(id, (topic, check)).is_some() {
                faults.push(format!("{id}: two checkers"));
            }
        }
    }
    let mut seen = BTreeMap::new();
    for (number, line) in (1..).zip(jsonl.lines()) {
        let problem: Problem = match serde_json::from_str(line) {
            Ok(problem) => problem,
            Err(error) => {
                faults.push(format!("line {number}: {error}"));
                continue;
            }
        };
        let id = problem.id.as_str();
        if let Some(before) = seen.insert(problem.id.clone(), number) {
            faults.push(format!("line {number}: {id} is already on line {before}"));
        }
        if !(0..=999).contains(&problem.answer) {
            faults.push(format!("{id}: {} is outside 0..=999", problem.answer));
        }
        if problem.problem.trim().is_empty() || !problem.problem.matches('$').count().is_multiple_of(2) {
            faults.push(format!("{id}: an empty text or an unpaired $"));
        }
        match checkers.get(id) {
            None => faults.push(format!("{id}: no checker")),
            Some((topic, _)) if *topic != problem.topic => {
                faults.push(format!("{id}: the topic is {:?}, the checker's is {topic:?}", problem.topic));
            }
            Some((_, check)) => {
                let computed = check();
                if computed != problem.answer {
                    faults.push(format!("{id}: the file says {}, the checker {computed}", problem.answer));
                }
            }
        }
    }
    for id in checkers.keys().filter(|&&id| !seen.contains_key(id)) {
        faults.push(format!("{id}: a checker without a problem"));
    }
    faults
}

fn data_file() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../datasets/aime_style.jsonl");
    std::fs::read_to_string(path).expect("the data file is readable")
}

#[test]
fn every_answer_is_what_its_checker_computes() {
    let text = data_file();
    assert_eq!(faults(&text), Vec::<String>::new());
    assert_eq!(text.lines().count(), 60);
}

#[test]
fn faults_in_the_file_are_found() {
    let text = data_file();
    let lines: Vec<&str> = text.lines().collect();
    let with = |first: &str, rest: &[&str]| faults(&[&[first], rest].concat().join("\n"));

    assert_eq!(with("{", &lines).len(), 1, "a malformed line");
    assert_eq!(with("", &lines).len(), 1, "an empty line");
    assert_eq!(with(lines[0], &lines).len(), 1, "a repeated id");
    assert_eq!(faults(&lines[1..].join("\n")).len(), 1, "a checker without a problem");
    let edited = |from: &str, to: &str| {
        assert!(lines[0].contains(from), "{from} is on the first line");
        with(&lines[0].replacen(from, to, 1), &lines[1..])
    };
    assert_eq!(edited("trs-001", "trs-100").len(), 2, "no checker, and a checker without a problem");
    assert_eq!(edited("\"answer\": 132", "\"answer\": 133").len(), 1, "a wrong answer");
    assert_eq!(edited("\"answer\": 132", "\"answer\": 1000").len(), 2, "out of range and wrong");
    assert_eq!(edited("\"answer\": 132", "\"answer\": \"132\"").len(), 2, "malformed, and so a problem missing");
    assert_eq!(edited("\"topic\"", "\"subject\"").len(), 2, "another field, and so a problem missing");
    assert_eq!(edited("number theory", "algebra").len(), 1, "another topic");
}

/// Calls `visit` with every list of `length` numbers below `base`.
fn each_tuple(length: usize, base: usize, mut visit: impl FnMut(&[usize])) {
    let mut digits = vec![0; length];
    loop {
        visit(&digits);
        let Some(place) = digits.iter().rposition(|&d| d + 1 < base) else { return };
        digits[place] += 1;
        digits[place + 1..].fill(0);
    }
}

/// All orders of the numbers below `n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else { return vec![Vec::new()] };
    let mut all = Vec::new();
    for shorter in permutations(last) {
        for place in 0..n {
            let mut longer = shorter.clone();
            longer.insert(place, last);
            all.push(longer);
        }
    }
    all
}
