//! Sequences, term by term.

use crate::Checker;
use crate::ratio::Ratio;

pub(super) const CHECKERS: &[Checker] = &[
    ("trs-006", squares_of_digits),
    ("trs-012", linear_recurrence),
    ("trs-018", geometric_then_arithmetic),
    ("trs-024", no_ternary_ones),
    ("trs-030", digits_in_a_row),
    ("trs-036", lucas_multiples),
    ("trs-042", reciprocal_steps),
    ("trs-048", every_third_leaves),
    ("trs-054", period_three),
    ("trs-060", even_handed),
];

/// The digits of `n` in a base, the last one first.
fn digits(n: i128, base: i128) -> impl Iterator<Item = i128> {
    std::iter::successors(Some(n), move |rest| Some(rest / base))
        .take_while(|&rest| rest > 0)
        .map(move |rest| rest % base)
}

fn squares_of_digits() -> i128 {
    (1..1000).fold(2024, |term, _| digits(term, 10).map(|d| d * d).sum())
}

fn linear_recurrence() -> i128 {
    let (mut term, mut next) = (1, 4);
    for _ in 1..2025 {
        (term, next) = (next, (4_i128 * next - term).rem_euclid(1000));
    }
    term
}

fn geometric_then_arithmetic() -> i128 {
    let mut values = std::collections::BTreeSet::new();
    for a in 1..96 {
        let d = 96 - a;
        for b in a + 1..d {
            for c in b + 1..d {
                if b * b == a * c && c - b == d - c {
                    values.insert(d);
                }
            }
        }
    }
    values.iter().sum()
}

fn no_ternary_ones() -> i128 {
    (1..).filter(|&n| digits(n, 3).all(|d| d != 1)).nth(59).expect("the numbers do not end")
}

fn digits_in_a_row() -> i128 {
    let text: String = (1..=225).map(|n| n.to_string()).collect();
    text.bytes().take(225).map(|byte| i128::from(byte - b'0')).sum()
}

fn lucas_multiples() -> i128 {
    let mut total = 0;
    let (mut term, mut next) = (1, 3);
    for _ in 0..1000 {
        total += i128::from(term % 3 == 0 || term % 7 == 0);
        (term, next) = (next, (term + next) % 21);
    }
    total
}

fn reciprocal_steps() -> i128 {
    let step = |a: Ratio, n: i128| a / (Ratio::int(1) + Ratio::int(n) * a);
    (1..20).fold(Ratio::new(3, 2), step).sum_of_terms()
}

fn every_third_leaves() -> i128 {
    let mut circle: std::collections::VecDeque<i128> = (1..=150).collect();
    while circle.len() > 1 {
        circle.rotate_left(2 % circle.len());
        circle.pop_front();
    }
    circle[0]
}

fn period_three() -> i128 {
    let one = Ratio::int(1);
    let terms = std::iter::successors(Some(Ratio::int(4)), |&x| Some(one / (one - x)));
    terms.take(100).fold(Ratio::int(0), |sum, x| sum + x).sum_of_terms()
}

fn even_handed() -> i128 {
    (1..).filter(|n: &i128| n.count_ones().is_multiple_of(2)).nth(332).expect("the numbers do not end")
}
