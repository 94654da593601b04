//! Probability: counting equally likely outcomes, or exact fractions.

use crate::ratio::{Ratio, is_square};
use crate::{Checker, each_tuple, permutations};

pub(super) const CHECKERS: &[Checker] = &[
    ("trs-005", square_product),
    ("trs-011", marbles),
    ("trs-017", octahedron),
    ("trs-023", runs_of_heads),
    ("trs-029", piles),
    ("trs-035", sum_of_squares),
    ("trs-041", hats),
    ("trs-047", tokens),
    ("trs-053", knockout),
    ("trs-059", different_values),
];

/// The share of outcomes that count among those that are possible.
#[derive(Default)]
struct Tally {
    good: i128,
    all: i128,
}

impl Tally {
    fn add(&mut self, good: bool) {
        self.good += i128::from(good);
        self.all += 1;
    }

    fn answer(&self) -> i128 {
        Ratio::new(self.good, self.all).sum_of_terms()
    }
}

fn square_product() -> i128 {
    let mut tally = Tally::default();
    each_tuple(4, 6, |dice| tally.add(is_square(dice.iter().map(|&d| d as i128 + 1).product()).is_some()));
    tally.answer()
}

fn marbles() -> i128 {
    let color = |marble: i32| match marble {
        0..5 => "red",
        5..9 => "blue",
        _ => "green",
    };
    let mut tally = Tally::default();
    for a in 0..12 {
        for b in a + 1..12 {
            for c in b + 1..12 {
                let colors = [color(a), color(b), color(c)];
                if colors.contains(&"red") {
                    tally.add(colors[0] != colors[1] && colors[1] != colors[2] && colors[0] != colors[2]);
                }
            }
        }
    }
    tally.answer()
}

/// All 4⁶ walks. Vertex `v` is opposite `v ^ 1` and next to the four others.
fn octahedron() -> i128 {
    let mut tally = Tally::default();
    each_tuple(6, 4, |choices| {
        let mut at = 0;
        for &choice in choices {
            let mut next = (0..6).filter(|&v| v != at && v != at ^ 1);
            at = next.nth(choice).unwrap_or(at);
        }
        tally.add(at == 0);
    });
    tally.answer()
}

/// A three-sided die with one side for heads.
fn runs_of_heads() -> i128 {
    let mut tally = Tally::default();
    each_tuple(6, 3, |flips| {
        let longest = flips.split(|&side| side != 0).map(<[usize]>::len).max();
        tally.add(longest == Some(2));
    });
    tally.answer()
}

/// Which of the three piles each card goes to.
fn piles() -> i128 {
    let mut tally = Tally::default();
    each_tuple(9, 3, |pile_of| {
        let (mut size, mut sum) = ([0; 3], [0; 3]);
        for (card, &pile) in (1..).zip(pile_of) {
            size[pile] += 1;
            sum[pile] += card;
        }
        if size == [3; 3] {
            tally.add(sum.iter().all(|sum| sum % 3 == 0));
        }
    });
    tally.answer()
}

fn sum_of_squares() -> i128 {
    let mut tally = Tally::default();
    for a in 1..=24 {
        for b in a + 1..=24 {
            tally.add((a * a + b * b) % 5 == 0);
        }
    }
    tally.answer()
}

/// Ada is 0 and Ben 1.
fn hats() -> i128 {
    let mut tally = Tally::default();
    for hat_of in permutations(6).iter().filter(|hat_of| hat_of[0] == 1) {
        tally.add(hat_of.iter().enumerate().all(|(friend, &hat)| friend != hat));
    }
    tally.answer()
}

/// With w(i) the probability of winning from i tokens, w(i) = 2/3 w(i+1) + 1/3 w(i-1), so that w(i) = f(i) w(1) with
/// f(i+1) = (3 f(i) - f(i-1)) / 2, and w(8) = 1.
fn tokens() -> i128 {
    let mut f = [Ratio::int(0); 9];
    f[1] = Ratio::int(1);
    for i in 1..8 {
        f[i + 1] = (Ratio::int(3) * f[i] - f[i - 1]) / Ratio::int(2);
    }
    (f[3] / f[8]).sum_of_terms()
}

/// Every bracket, played; player 0 is the strongest.
fn knockout() -> i128 {
    let mut tally = Tally::default();
    for mut players in permutations(8) {
        let mut met = false;
        while players.len() > 1 {
            met |= players.chunks(2).any(|pair| pair == [2, 3] || pair == [3, 2]);
            players = players.chunks(2).map(|pair| pair[0].min(pair[1])).collect();
        }
        tally.add(met);
    }
    tally.answer()
}

fn different_values() -> i128 {
    let (mut values, mut rolls) = (0, 0);
    each_tuple(4, 6, |dice| {
        values += (0..6).filter(|value| dice.contains(value)).count() as i128;
        rolls += 1;
    });
    Ratio::new(values, rolls).sum_of_terms()
}
