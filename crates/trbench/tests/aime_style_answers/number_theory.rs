//! Number theory.

use crate::Checker;
use crate::ratio::{gcd, is_square};

pub(super) const CHECKERS: &[Checker] = &[
    ("trs-001", divisible_by_91),
    ("trs-007", six_digit_decimals),
    ("trs-013", tower_of_threes),
    ("trs-019", lopsided),
    ("trs-025", divisible_by_13),
    ("trs-031", neighbouring_cubes),
    ("trs-037", sixteen_times_the_digits),
    ("trs-043", square_gcd),
    ("trs-049", odd_factorial),
    ("trs-055", stamps),
];

fn count(range: impl Iterator<Item = i128>, keep: impl Fn(i128) -> bool) -> i128 {
    range.filter(|&n| keep(n)).count() as i128
}

fn divisible_by_91() -> i128 {
    count(1..=3000, |n| (n * n + n + 1) % 91 == 0)
}

/// By long division. Six digits make `k` a divisor of a million.
fn six_digit_decimals() -> i128 {
    let digits = |k: i128| {
        let mut remainder = 1 % k;
        (0..=6).find(|_| {
            let done = remainder == 0;
            remainder = remainder * 10 % k;
            done
        })
    };
    (1..=1_000_000).filter(|&k| digits(k) == Some(6)).sum::<i128>() % 1000
}

/// Each term is the cube of the one before.
fn tower_of_threes() -> i128 {
    std::iter::successors(Some(3), |term| Some(term * term * term % 1000)).take(10).sum::<i128>() % 1000
}

fn lopsided() -> i128 {
    count((9..10_000).step_by(9), |n| {
        let (even, odd): (Vec<i128>, Vec<i128>) = (1..=n).filter(|d| n % d == 0).partition(|d| d % 2 == 0);
        even.len() == 3 * odd.len()
    })
}

fn divisible_by_13() -> i128 {
    let powers = std::iter::successors(Some(3), |power| Some(power * 3 % 13));
    (1..=1000_i128).zip(powers).filter(|(n, power)| (power + n.pow(3)) % 13 == 0).count() as i128
}

/// A common divisor of the two also divides 973, so that the values repeat with that period.
fn neighbouring_cubes() -> i128 {
    (1..=2000_i128).map(|n| gcd(n.pow(3) + 6, (n + 1).pow(3) + 6)).max().unwrap_or_default()
}

fn sixteen_times_the_digits() -> i128 {
    (100..1000).filter(|n| *n == 16 * (n / 100 + n / 10 % 10 + n % 10)).sum()
}

fn square_gcd() -> i128 {
    let divisors: Vec<i128> = (1..=7200).filter(|d| 7200 % d == 0).collect();
    let pairs = divisors.iter().flat_map(|&a| divisors.iter().map(move |&b| (a, b)));
    pairs.filter(|&(a, b)| a * b / gcd(a, b) == 7200 && is_square(gcd(a, b)).is_some()).count() as i128
}

fn odd_factorial() -> i128 {
    let mut primes = 0;
    for mut factor in (1..60_i128).step_by(2) {
        for prime in 2..60 {
            while factor % prime == 0 {
                factor /= prime;
                primes += 1;
            }
        }
    }
    primes
}

/// Past 1000, fifteen amounts in a row that can be paid make all later ones payable too.
fn stamps() -> i128 {
    let mut payable = vec![false; 1100];
    payable[0] = true;
    for cents in 1..payable.len() {
        payable[cents] = [15, 21, 35].iter().any(|&stamp| cents >= stamp && payable[cents - stamp]);
    }
    assert!(payable[1000..1015].iter().all(|&paid| paid));
    payable.iter().filter(|&&paid| !paid).count() as i128
}
