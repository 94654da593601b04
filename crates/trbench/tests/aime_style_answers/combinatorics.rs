//! Combinatorics.

use crate::{Checker, each_tuple, permutations};

pub(super) const CHECKERS: &[Checker] = &[
    ("trs-002", tilings),
    ("trs-008", books),
    ("trs-014", walks),
    ("trs-020", subsets),
    ("trs-026", round_table),
    ("trs-032", cube_painting),
    ("trs-038", quadruples),
    ("trs-044", strings),
    ("trs-050", functions),
    ("trs-056", rooks),
];

/// Puts a piece on the first free square in every way that fits.
fn tilings() -> i128 {
    // Squares are numbered column by column: square 2c + r is in column c and row r.
    const PIECES: [&[(usize, usize)]; 6] = [
        &[(0, 0), (0, 1)],
        &[(0, 0), (1, 0)],
        &[(0, 0), (0, 1), (1, 0)],
        &[(0, 0), (0, 1), (1, 1)],
        &[(0, 0), (1, 0), (1, 1)],
        &[(0, 1), (1, 0), (1, 1)],
    ];
    fn ways(covered: u32) -> i128 {
        let first = covered.trailing_ones() as usize;
        if first == 18 {
            return 1;
        }
        let mut total = 0;
        for piece in PIECES {
            // Moved so that one of its squares is the first free one.
            for row in 0..2 {
                let Some(squares) = place(piece, first / 2, row) else { continue };
                if squares & covered == 0 && squares.trailing_zeros() as usize == first {
                    total += ways(covered | squares);
                }
            }
        }
        total
    }
    fn place(piece: &[(usize, usize)], column: usize, row: usize) -> Option<u32> {
        let mut squares = 0;
        for &(c, r) in piece {
            if column + c >= 9 || row + r >= 2 {
                return None;
            }
            squares |= 1 << (2 * (column + c) + row + r);
        }
        Some(squares)
    }
    ways(0)
}

fn books() -> i128 {
    let good = |order: &&Vec<usize>| !order.windows(3).any(|w| w[0] < w[1] && w[1] < w[2]);
    permutations(6).iter().filter(good).count() as i128
}

fn walks() -> i128 {
    let mut total = 0;
    for steps in (0..1_u32 << 12).filter(|steps| steps.count_ones() == 6) {
        let visits = |x: u32, y: u32| (steps & ((1 << (x + y)) - 1)).count_ones() == x;
        total += i128::from(!visits(2, 3) && !visits(4, 4));
    }
    total
}

fn subsets() -> i128 {
    (1..1_u32 << 13).filter(|set| set & (set << 3) == 0).count() as i128
}

/// The guide stays in place, which picks one of the seven rotations. Person `p`'s spouse is `p ^ 1`.
fn round_table() -> i128 {
    let good = |order: &&Vec<usize>| !order.windows(2).any(|w| w[0] ^ 1 == w[1]);
    permutations(6).iter().filter(good).count() as i128
}

/// Vertices are numbered by their coordinates' bits, so that neighbours differ in one bit.
fn cube_painting() -> i128 {
    let mut total = 0;
    each_tuple(8, 3, |colors| {
        let clash = (0..8).any(|v| [1, 2, 4].iter().any(|bit| colors[v] == colors[v ^ bit]));
        total += i128::from(!clash);
    });
    total
}

fn quadruples() -> i128 {
    let mut total = 0;
    for a in 1..24 {
        for b in a + 1..24 {
            for c in 1..24 {
                total += i128::from((c + 1..24).any(|d| a + b + c + d == 24));
            }
        }
    }
    total
}

fn strings() -> i128 {
    let has_run =
        |bits: u32, length: u32| (0..=12 - length).any(|at| (bits >> at) & ((1 << length) - 1) == (1 << length) - 1);
    (0..1_u32 << 12).filter(|&bits| !has_run(!bits & 0xFFF, 3) && !has_run(bits, 4)).count() as i128
}

fn functions() -> i128 {
    let mut total = 0;
    each_tuple(5, 5, |f| total += i128::from((0..5).all(|x| f[f[f[x]]] == f[x])));
    total
}

/// Row by row: the column of each rook, or none in the row.
fn rooks() -> i128 {
    fn ways(row: usize, taken: u32, left: u32) -> i128 {
        if left == 0 {
            return 1;
        }
        if row == 5 {
            return 0;
        }
        let columns = (0..5).filter(|&column| column != row && taken & (1 << column) == 0);
        ways(row + 1, taken, left) + columns.map(|column| ways(row + 1, taken | 1 << column, left - 1)).sum::<i128>()
    }
    ways(0, 0, 4)
}
