//! Exact fractions.

use std::ops::{Add, Div, Mul, Sub};

/// A fraction in lowest terms with a positive denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ratio {
    pub(crate) num: i128,
    pub(crate) den: i128,
}

impl Ratio {
    pub(crate) fn new(num: i128, den: i128) -> Self {
        assert_ne!(den, 0, "division by zero");
        let divisor = gcd(num, den) * den.signum();
        Self { num: num / divisor, den: den / divisor }
    }

    pub(crate) fn int(num: i128) -> Self {
        Self { num, den: 1 }
    }

    /// Numerator plus denominator, which is what many of the problems ask for.
    pub(crate) fn sum_of_terms(self) -> i128 {
        self.num + self.den
    }

    /// The value of a fraction that is an integer.
    pub(crate) fn integer(self) -> i128 {
        assert_eq!(self.den, 1, "{self:?} is an integer");
        self.num
    }

    /// The square root of a fraction whose root is a fraction.
    pub(crate) fn sqrt(self) -> Self {
        Self::new(exact_sqrt(self.num), exact_sqrt(self.den))
    }
}

impl Add for Ratio {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::new(self.num * other.den + other.num * self.den, self.den * other.den)
    }
}

impl Sub for Ratio {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self::new(self.num * other.den - other.num * self.den, self.den * other.den)
    }
}

impl Mul for Ratio {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Self::new(self.num * other.num, self.den * other.den)
    }
}

impl Div for Ratio {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        Self::new(self.num * other.den, self.den * other.num)
    }
}

pub(crate) fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

/// The square root of a perfect square.
pub(crate) fn exact_sqrt(n: i128) -> i128 {
    is_square(n).unwrap_or_else(|| panic!("{n} is a perfect square"))
}

/// The square root of `n`, if that is an integer.
pub(crate) fn is_square(n: i128) -> Option<i128> {
    (0..).take_while(|root| root * root <= n).find(|root| root * root == n)
}
