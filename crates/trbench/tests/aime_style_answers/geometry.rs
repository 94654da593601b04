//! Geometry, in coordinates.

use crate::Checker;
use crate::ratio::{Ratio, exact_sqrt};

pub(super) const CHECKERS: &[Checker] = &[
    ("trs-004", radii),
    ("trs-010", lattice_points),
    ("trs-016", obtuse_triangles),
    ("trs-022", rectangle_incenters),
    ("trs-028", perpendicular_chords),
    ("trs-034", tetrahedron),
    ("trs-040", cevians),
    ("trs-046", trapezoid),
    ("trs-052", three_circles),
    ("trs-058", triangles_around_the_center),
];

#[derive(Clone, Copy)]
struct Point(Ratio, Ratio);

fn point(x: i128, y: i128) -> Point {
    Point(Ratio::int(x), Ratio::int(y))
}

impl Point {
    fn distance_squared(self, other: Self) -> Ratio {
        let (dx, dy) = (self.0 - other.0, self.1 - other.1);
        dx * dx + dy * dy
    }

    /// The point at `t` of the way to another.
    fn toward(self, other: Self, t: Ratio) -> Self {
        Self(self.0 + t * (other.0 - self.0), self.1 + t * (other.1 - self.1))
    }
}

/// Twice the signed area of a triangle.
fn cross(a: Point, b: Point, c: Point) -> Ratio {
    (b.0 - a.0) * (c.1 - a.1) - (b.1 - a.1) * (c.0 - a.0)
}

/// The center of the circle through three points: where two perpendicular bisectors meet.
fn circumcenter(a: Point, b: Point, c: Point) -> Point {
    // 2(p - a)·x = p·p - a·a, for p = b and p = c.
    let row = |p: Point| {
        let two = Ratio::int(2);
        let right = p.0 * p.0 + p.1 * p.1 - a.0 * a.0 - a.1 * a.1;
        (two * (p.0 - a.0), two * (p.1 - a.1), right)
    };
    let ((a1, b1, c1), (a2, b2, c2)) = (row(b), row(c));
    let determinant = a1 * b2 - a2 * b1;
    Point((c1 * b2 - c2 * b1) / determinant, (a1 * c2 - a2 * c1) / determinant)
}

/// The center of the inscribed circle: the vertices weighted by the opposite sides.
fn incenter(a: Point, b: Point, c: Point) -> Point {
    let sides = [b.distance_squared(c).sqrt(), c.distance_squared(a).sqrt(), a.distance_squared(b).sqrt()];
    let perimeter = sides[0] + sides[1] + sides[2];
    let mean = |x: Ratio, y: Ratio, z: Ratio| (sides[0] * x + sides[1] * y + sides[2] * z) / perimeter;
    Point(mean(a.0, b.0, c.0), mean(a.1, b.1, c.1))
}

/// The third vertex, with integer coordinates, is found by trial.
fn radii() -> i128 {
    let (a, b) = (point(0, 0), point(51, 0));
    let grid = (0..=51).flat_map(|x| (1..=51).map(move |y| point(x, y)));
    let right = |c: &Point| c.distance_squared(a) == Ratio::int(400) && c.distance_squared(b) == Ratio::int(1369);
    let c = grid.into_iter().find(right).expect("a vertex with integer coordinates");
    let circumradius = circumcenter(a, b, c).distance_squared(a).sqrt();
    // The side AB is on the x axis.
    (circumradius / incenter(a, b, c).1).sum_of_terms()
}

fn lattice_points() -> i128 {
    let (a, b, c) = (point(0, 0), point(40, 12), point(16, 45));
    let inside = |p: &Point| [cross(a, b, *p), cross(b, c, *p), cross(c, a, *p)].iter().all(|twice| twice.num > 0);
    (0..=40).flat_map(|x| (0..=45).map(move |y| point(x, y))).filter(inside).count() as i128
}

fn obtuse_triangles() -> i128 {
    let mut total = 0;
    for a in 1..60 {
        for b in a..60 - a {
            let c = 60 - a - b;
            total += i128::from(b <= c && a + b > c && a * a + b * b < c * c);
        }
    }
    total
}

fn rectangle_incenters() -> i128 {
    let (a, b, c, d) = (point(0, 0), point(24, 0), point(24, 10), point(0, 10));
    incenter(a, b, c).distance_squared(incenter(a, c, d)).integer()
}

/// P is the origin. The fourth end must come out on the circle through the other three.
fn perpendicular_chords() -> i128 {
    let (a, b, c, d) = (point(-3, 0), point(16, 0), point(0, -6), point(0, 8));
    let center = circumcenter(a, b, c);
    assert_eq!(center.distance_squared(a), center.distance_squared(d));
    center.distance_squared(a).sum_of_terms()
}

/// The Cayley-Menger determinant is 288 times the squared volume.
fn tetrahedron() -> i128 {
    let (ab, ac, ad) = (100, 117, 145);
    let rows: [[i128; 5]; 5] =
        [[0, 1, 1, 1, 1], [1, 0, ab, ac, ad], [1, ab, 0, ad, ac], [1, ac, ad, 0, ab], [1, ad, ac, ab, 0]];
    let determinant: i128 = crate::permutations(5)
        .iter()
        .map(|order| {
            let pairs = (0..5).flat_map(|i| (i + 1..5).map(move |j| (i, j)));
            let inversions = pairs.filter(|&(i, j)| order[i] > order[j]).count();
            let product: i128 = order.iter().zip(&rows).map(|(&column, row)| row[column]).product();
            if inversions % 2 == 0 { product } else { -product }
        })
        .sum();
    assert_eq!(determinant % 288, 0);
    exact_sqrt(determinant / 288)
}

/// Any triangle of twice the area 1210 will do.
fn cevians() -> i128 {
    let (a, b, c) = (point(3, 110), point(0, 0), point(11, 0));
    assert_eq!(cross(a, b, c), Ratio::int(1210));
    let d = b.toward(c, Ratio::new(2, 5));
    let e = c.toward(a, Ratio::new(1, 5));
    // F divides AD in the ratio of the areas of ABE and BDE.
    let (above, below) = (cross(a, b, e), cross(b, d, e));
    let f = a.toward(d, above / (above + below));
    assert_eq!(cross(b, f, e), Ratio::int(0));
    ((cross(c, e, f) + cross(c, f, d)) / Ratio::int(2)).integer()
}

/// The bases are on y = 0 and y = h, symmetric about the y axis, and the circle of radius h/2 between them touches a leg.
fn trapezoid() -> i128 {
    // The leg from (16, 0) to (9, h), and the circle's center (0, h/2): twice the area of the triangle is leg · h/2.
    let touches = |h: &i128| {
        let (low, high) = (point(16, 0), point(9, *h));
        let center = Point(Ratio::int(0), Ratio::new(*h, 2));
        let twice = cross(low, high, center);
        twice * twice == low.distance_squared(high) * Ratio::new(h * h, 4)
    };
    let heights: Vec<i128> = (1..=1000).filter(touches).collect();
    assert_eq!(heights.len(), 1);
    let h = heights[0];
    assert_eq!(h % 2, 0);
    (18 + 32) * h / 2 + (h / 2).pow(2)
}

/// Centers are at the height of their radius. Two circles on the line touch if the feet of their centers are 2√(rs)
/// apart, which follows from the distance r + s and the difference of heights r - s, and which is checked at the end.
fn three_circles() -> i128 {
    let feet = exact_sqrt(4 * 16 * 9);
    // The small circle's radius is a square m²/n²: 2√(16r) + 2√(9r) = 24.
    let roots = (1..=100).flat_map(|n| (1..3 * n).map(move |m| Ratio::new(m, n)));
    let root = roots.into_iter().find(|&s| Ratio::int(8 + 6) * s == Ratio::int(feet)).expect("a rational root");
    let radius = root * root;
    let center = Point(Ratio::int(8) * root, radius);
    for (other, r) in [(point(0, 16), 16), (point(feet, 9), 9)] {
        let sum = Ratio::int(r) + radius;
        assert_eq!(center.distance_squared(other), sum * sum);
    }
    assert_eq!(point(0, 16).distance_squared(point(feet, 9)), Ratio::int(25 * 25));
    radius.sum_of_terms()
}

/// The center is inside if every arc between vertices is less than half of the circle.
fn triangles_around_the_center() -> i128 {
    let mut total = 0;
    for a in 0..18 {
        for b in a + 1..18 {
            total += (b + 1..18).filter(|c| [b - a, c - b, 18 - (c - a)].iter().all(|&arc| arc < 9)).count() as i128;
        }
    }
    total
}
