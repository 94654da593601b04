//! Algebra.

use crate::Checker;
use crate::ratio::Ratio;

pub(super) const CHECKERS: &[Checker] = &[
    ("trs-003", product_over_roots),
    ("trs-009", fifth_powers),
    ("trs-015", fourth_powers),
    ("trs-021", factorable_quartics),
    ("trs-027", floors),
    ("trs-033", cubic_through_powers),
    ("trs-039", roots_of_unity),
    ("trs-045", greatest_on_circle),
    ("trs-051", coefficient),
    ("trs-057", telescoping),
];

type Matrix<const N: usize> = [[i128; N]; N];

fn multiply<const N: usize>(a: &Matrix<N>, b: &Matrix<N>) -> Matrix<N> {
    std::array::from_fn(|i| std::array::from_fn(|j| (0..N).map(|k| a[i][k] * b[k][j]).sum()))
}

/// The sum of the `power`th powers of a matrix's eigenvalues.
fn power_sum<const N: usize>(matrix: &Matrix<N>, power: usize) -> i128 {
    let product = (1..power).fold(*matrix, |product, _| multiply(&product, matrix));
    (0..N).map(|i| product[i][i]).sum()
}

/// The companion matrix of x³ + ax² + bx + c, whose eigenvalues are the roots.
fn companion(a: i128, b: i128, c: i128) -> Matrix<3> {
    [[0, 0, -c], [1, 0, -b], [0, 1, -a]]
}

/// The determinant of C² + I, for the companion matrix C.
fn product_over_roots() -> i128 {
    let c = companion(-5, 3, 7);
    let mut m = multiply(&c, &c);
    for (i, row) in m.iter_mut().enumerate() {
        row[i] += 1;
    }
    let minor = |i: usize, j: usize| m[1][i] * m[2][j] - m[1][j] * m[2][i];
    m[0][0] * minor(1, 2) - m[0][1] * minor(0, 2) + m[0][2] * minor(0, 1)
}

fn fifth_powers() -> i128 {
    power_sum(&companion(-3, -2, 5), 5)
}

/// The numbers are the eigenvalues of a matrix with trace 5; its determinant is found by trial. x³ + y³ is of degree one
/// in that determinant, so no other will do.
fn fourth_powers() -> i128 {
    let matrix = |product: i128| [[0, -product], [1, 5]];
    let product = (-100..=100).find(|&p| power_sum(&matrix(p), 3) == 80).expect("an integer product");
    power_sum(&matrix(product), 4)
}

/// (x² + ax + b)(x² + cx + d) has no cubic term, so c = -a; a² = b + d - n is at most 345, as b + d is at most 145.
fn factorable_quartics() -> i128 {
    let factors = |n: i128| {
        (0..=19).any(|a| {
            let divisors = (-144..=144).filter(|&b| b != 0 && 144 % b == 0);
            divisors.map(|b| (b, 144 / b)).any(|(b, d)| a * (d - b) == 0 && b + d - a * a == n)
        })
    };
    (-200..=200).filter(|&n| factors(n)).count() as i128
}

/// n/5 - n/7 is less than 3 for a solution, so n is below 53.
fn floors() -> i128 {
    (1..1000).filter(|n| n / 5 == n / 7 + 2).sum()
}

/// Lagrange's formula.
fn cubic_through_powers() -> i128 {
    let mut value = Ratio::int(0);
    for k in 0..4 {
        let others = (0..4).filter(|&j| j != k);
        let basis = others.fold(Ratio::int(1), |product, j| product * Ratio::new(8 - j, k - j));
        value = value + Ratio::int(3_i128.pow(k as u32)) * basis;
    }
    value.integer()
}

/// z = exp(2πik/84): z¹⁰ is at 10k/84 of a full turn, which must be less than a sixth from zero either way.
fn roots_of_unity() -> i128 {
    let near = |turn: i128| 6 * turn < 84 || 6 * (84 - turn) < 84;
    (0..84).filter(|k| near(10 * k % 84)).count() as i128
}

/// The largest c for which the line 3x + 4y = c meets the circle. With y = (c - 3x)/4 the circle's equation times 16 is
/// 25x² + (-6c - 160 + 288)x + c² - 96c = 0. At the largest c the line is tangent, so that c is no fraction.
fn greatest_on_circle() -> i128 {
    let discriminant = |c: i128| (128 - 6 * c).pow(2) - 100 * (c * c - 96 * c);
    let largest = (0..=10_000).filter(|&c| discriminant(c) >= 0).max().expect("a line that meets the circle");
    assert_eq!(discriminant(largest), 0);
    largest
}

fn coefficient() -> i128 {
    let mut power = vec![0; 25];
    power[0] = 1;
    for _ in 0..8 {
        power = (0..25).map(|i| [0, 1, 3].iter().filter(|&&e| e <= i).map(|e| power[i - e]).sum()).collect();
    }
    power[9]
}

fn telescoping() -> i128 {
    (1..=20).fold(Ratio::int(0), |sum, k| sum + Ratio::new(1, k * (k + 2))).sum_of_terms()
}
