#!/usr/bin/env bash
# The one test command: formatting, lints, all tests (unit, property, CLI, end to end on the real demo model), docs.
# Needs Rust, a C and a C++ compiler, and Python 3 with pip; fetches the demo model into the cache on its first run.
set -euo pipefail
cd "$(dirname "$0")/.."
# Absolute: some steps run in folders of their own.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

step() { printf '\n== %s ==\n' "$*"; }

step "tools"
for component in rustfmt clippy; do
    cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 || rustup component add "$component"
done
python3 -m pip --version

step "CUDA compiler"
# The CUDA kernels run on the host, so that no GPU is needed to test them; the code for GPUs is built where it can be.
features="--features tokenrouter-engine/cuda-emulation"
if bash scripts/cuda_toolkit.sh; then
    features+=",trbench/cuda"
else
    echo "skipped: the code for GPUs is not built, its compiler cannot be fetched"
fi

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --release --workspace --all-targets --locked $features -- -D warnings

step "layers"
# `crates/core` and `crates/engine` are to follow when they have no circle.
python3 -m unittest scripts/test_check_layers.py
python3 scripts/check_layers.py crates/trbench crates/kernels

step "build"
# One profile for everything: see Cargo.toml. And one build: a single crate's would have other features, and compile candle again.
cargo test --release --workspace --locked $features --no-run

step "demo model"
"$target/release/trbench" models fetch demo

step "tests"
cargo test --release --workspace --locked $features

step "stock clients"
python3 -m pip install --quiet --target "$target/clients" --upgrade openai
PYTHONPATH="$target/clients" python3 scripts/clients.py --binary "$target/release/trbench"

step "python"
bash scripts/test_python.sh

step "notebooks"
python3 -m pip install --quiet --target "$target/notebooks" --upgrade -r notebooks/requirements.txt
PYTHONPATH="$target/notebooks:$target/python-site" python3 notebooks/run.py

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps --locked

printf '\nall checks passed\n'
