//! Products of one large matrix in every format, beside the matrix in Q4_1: `--format q4_k,q6_k` and `--shape n,k`.

use std::time::Instant;

use tokenrouter_kernels::{Activations, Format, Isa, PackedMatrix, Pool};

/// A matrix and its times.
struct Candidate {
    matrix: PackedMatrix,
    /// Bytes of the file that are repacked per second.
    load: f64,
    /// Seconds of a product, per number of rows.
    times: Vec<Vec<f64>>,
}

/// What to multiply.
pub(crate) struct Matrices {
    pub(crate) shape: (usize, usize),
    pub(crate) rows: Vec<usize>,
    pub(crate) runs: usize,
    pub(crate) min: bool,
    pub(crate) isa: Isa,
}

/// The formats of a list such as `q4_k,f16`, or all of them.
pub(crate) fn parse(names: &str) -> Result<Vec<Format>, String> {
    if names == "all" {
        return Ok(Format::ALL.to_vec());
    }
    let find = |name: &str| Format::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
    let known = || Format::ALL.map(Format::name).join(", ");
    names.split(',').map(|name| find(name).ok_or_else(|| format!("`{name}` is none of {}", known()))).collect()
}

/// Random weights: small bytes in places of scales, so that all numbers are finite.
fn candidate(format: Format, (n, k): (usize, usize), phases: usize) -> Result<Candidate, String> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let bytes = (0..n * k / format.columns() * format.bytes()).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Exponents of half floats stay below the largest, and those of MXFP4 above the smallest.
        (state >> 32) as u8 & 0x3f | if format == Format::Mxfp4 { 0x40 } else { 0 }
    });
    let bytes: Vec<u8> = bytes.collect();
    let start = Instant::now();
    let matrix = PackedMatrix::from_blocks(format, n, k, &bytes).map_err(|error| error.to_string())?;
    let load = bytes.len() as f64 / start.elapsed().as_secs_f64();
    Ok(Candidate { matrix, load, times: vec![Vec::new(); phases] })
}

impl Matrices {
    /// Prints a table for one number of threads, whose read bandwidth is given in bytes per second.
    #[allow(clippy::print_stdout, reason = "the output of this program")]
    pub(crate) fn measure(&self, formats: &[Format], (threads, bandwidth): (usize, f64)) -> Result<(), String> {
        let (n, k) = self.shape;
        let mut all = vec![Format::Q4_1];
        all.extend(formats.iter().filter(|format| **format != Format::Q4_1));
        let mut candidates = Vec::new();
        for format in all {
            candidates.push(candidate(format, self.shape, self.rows.len())?);
        }
        let pool = Pool::new(threads, Some((0..threads).collect())).map_err(|error| error.to_string())?;
        for (index, rows) in self.rows.iter().enumerate() {
            let x: Vec<f32> = (0..rows * k).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 1e3 - 0.5).collect();
            let mut quantized = Activations::default();
            quantized.quantize(self.isa, &pool, &x, k).map_err(|error| error.to_string())?;
            let mut out = vec![0.0; rows * n];
            // Formats take turns, so that all of them see the same noise. The first turn warms up.
            for run in 0..=self.runs {
                for candidate in &mut candidates {
                    let start = Instant::now();
                    let product = candidate.matrix.multiply(self.isa, &pool, (&x, &quantized), &mut out, (n, 0));
                    product.map_err(|error| error.to_string())?;
                    if run > 0 {
                        candidate.times[index].push(start.elapsed().as_secs_f64());
                    }
                }
            }
        }
        let time = |candidate: &Candidate, index: usize| {
            let mut times = candidate.times[index].clone();
            times.sort_unstable_by(f64::total_cmp);
            times[if self.min { 0 } else { times.len() / 2 }]
        };
        println!("\nmatrix {n} x {k}, {threads} threads, read {:.1} GB/s", bandwidth / 1e9);
        println!(
            "| format | path | bits a weight | repacked, GB/s | rows | ms | GB/s | of read bandwidth | GMAC/s | speed, Q4_1 = 1 |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|");
        for candidate in &candidates {
            let Candidate { matrix, .. } = candidate;
            for (index, rows) in self.rows.iter().enumerate() {
                let seconds = time(candidate, index);
                let read = matrix.bytes() as f64 / seconds;
                println!(
                    "| {} | {:?} | {:.2} | {:.2} | {rows} | {:.2} | {:.1} | {:.0} % | {:.1} | {:.2} |",
                    matrix.format(),
                    self.isa.path(matrix.format()),
                    matrix.bytes() as f64 * 8.0 / (n * k) as f64,
                    candidate.load / 1e9,
                    seconds * 1e3,
                    read / 1e9,
                    100.0 * read / bandwidth,
                    (rows * n * k) as f64 / seconds / 1e9,
                    time(&candidates[0], index) / seconds,
                );
            }
        }
        Ok(())
    }
}
