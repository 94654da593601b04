#!/usr/bin/env bash
# The one test command: formatting, lints, all tests (unit, property, command line, end to end on the real demo model), documentation.
# Needs Rust, a C and a C++ compiler, and Python 3 with pip. The first run fetches the demo model into the cache.
set -euo pipefail
cd "$(dirname "$0")/.."
# Absolute, because some steps change the folder.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

step() { printf '\n== %s ==\n' "$*"; }

step "tools"
for component in rustfmt clippy; do
    cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 || rustup component add "$component"
done
python3 -m pip --version

step "CUDA compiler"
# The tests run the CUDA kernels on the host and need no GPU. The code for GPUs is built where its compiler can be fetched.
features="--features tokenrouter-engine/cuda-emulation"
if bash scripts/cuda_toolkit.sh; then
    features+=",trbench/cuda"
else
    echo "skipped: the code for GPUs is not built, its compiler cannot be fetched"
fi

step "format"
cargo fmt --all --check

step "dependencies"
bash scripts/deny.sh
# What decides must not come to depend on what waits, serves or computes tensors.
if cargo tree -p tokenrouter-core -e normal,build --prefix none --locked | grep -E '^(tokio|axum|hyper|reqwest|candle)'; then
    echo "crates/core must depend on none of these" >&2
    exit 1
fi

step "lints"
cargo clippy --release --workspace --all-targets --locked $features -- -D warnings

step "layers"
python3 -m unittest scripts/test_check_layers.py
python3 scripts/check_layers.py crates/core crates/engine crates/kernels crates/trbench

step "build"
# One profile for everything (see Cargo.toml), and one build: building a single crate would select other features and compile
# candle again.
cargo test --release --workspace --locked $features --no-run

step "demo model"
"$target/release/trbench" models fetch demo

step "tests"
cargo test --release --workspace --locked $features

step "stock clients"
python3 -m pip install --quiet --target "$target/clients" --upgrade -c scripts/constraints.txt openai
PYTHONPATH="$target/clients" python3 scripts/clients.py --binary "$target/release/trbench"

step "python"
bash scripts/test_python.sh

step "notebooks"
python3 -m pip install --quiet --target "$target/notebooks" --upgrade -c scripts/constraints.txt -r notebooks/requirements.txt
PYTHONPATH="$target/notebooks:$target/python-site" python3 notebooks/run.py

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps --locked

printf '\nall checks passed\n'
