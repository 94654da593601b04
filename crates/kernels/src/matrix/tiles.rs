//! Tiles of 16 rows x 32 columns for Q4_0, Q4_1 and Q8_0, and columns of 16 rows for floats.

use half::f16;

use super::Format;
use crate::LANES;
use crate::memory::Buffer;
use crate::quantize::BLOCK;

/// 16 rows x 32 columns of 4-bit weights: `value = scale * q + minimum`.
///
/// Group `g` holds columns `8g..8g+8`; byte `g * 64 + row * 4 + j` has column `8g + j` in its low nibble and column
/// `8g + 4 + j` in its high one, so four bytes of a row match four consecutive activations.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Tile4 {
    pub(crate) values: [u8; 256],
    pub(crate) scales: [f16; LANES],
    pub(crate) minima: [f16; LANES],
}

/// 16 rows x 32 columns of 8-bit weights plus 128; byte `g * 64 + row * 4 + j` is column `4g + j`.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Tile8 {
    pub(crate) values: [u8; 512],
    pub(crate) scales: [f16; LANES],
}

/// The first four bytes.
fn four(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

pub(super) fn tile4<'a>(format: Format, block: impl Fn(usize) -> Option<&'a [u8]>) -> Tile4 {
    let mut tile = Tile4 { values: [0; 256], scales: [f16::ZERO; LANES], minima: [f16::ZERO; LANES] };
    for row in 0..LANES {
        let Some(bytes) = block(row) else { continue };
        let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]);
        tile.scales[row] = half(0);
        let quants = match format {
            Format::Q4_1 => {
                tile.minima[row] = half(2);
                &bytes[4..]
            }
            _ => {
                // q - 8 is q with a minimum of -8 scales. Multiplying by a power of two loses nothing.
                tile.minima[row] = f16::from_f32(-8.0 * half(0).to_f32());
                &bytes[2..]
            }
        };
        // The file has columns 0..16 in the low nibbles and 16..32 in the high ones. Four columns at a time:
        for group in 0..4 {
            let at = 8 * (group % 2);
            let (first, second) = (four(&quants[at..]), four(&quants[at + 4..]));
            let (low, high) = if group < 2 { (first, second << 4) } else { (first >> 4, second) };
            let bytes = low & 0x0f0f_0f0f | high & 0xf0f0_f0f0;
            tile.values[group * 64 + row * 4..][..4].copy_from_slice(&bytes.to_le_bytes());
        }
    }
    tile
}

pub(super) fn tile8<'a>(block: impl Fn(usize) -> Option<&'a [u8]>) -> Tile8 {
    let mut tile = Tile8 { values: [128; 512], scales: [f16::ZERO; LANES] };
    for row in 0..LANES {
        let Some(bytes) = block(row) else { continue };
        tile.scales[row] = f16::from_le_bytes([bytes[0], bytes[1]]);
        for group in 0..BLOCK / 4 {
            // Adds 128 to every byte.
            let bytes = four(&bytes[2 + 4 * group..]) ^ 0x8080_8080;
            tile.values[group * 64 + row * 4..][..4].copy_from_slice(&bytes.to_le_bytes());
        }
    }
    tile
}

/// `[tile][k][16]` of `[n, k]` values.
pub(super) fn dense<T: Copy + Default + Send>(
    n: usize,
    k: usize,
    value: impl Fn(usize) -> T + Sync,
) -> Buffer<[T; LANES]> {
    Buffer::from_fn(n.div_ceil(LANES) * k, |index| {
        let (first, column) = (index / k * LANES, index % k);
        let mut lanes = [T::default(); LANES];
        for (row, lane) in (first..n).zip(&mut lanes) {
            *lane = value(row * k + column);
        }
        lanes
    })
}
