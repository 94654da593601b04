#!/usr/bin/env bash
# Builds the wheel of the Python package, installs it into a folder of its own and runs its tests against it.
# Needs Rust and Python 3 with pip; `--target` folders work where the system's Python refuses to be changed or has no venv.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
tools=$target/python-tools
site=$target/python-site
wheels=$target/wheels

python3 -m pip install --quiet --upgrade --target "$tools" maturin
rm -rf "$site" "$wheels"
# The same profile and the same features as everything else, so that the engine is not compiled again.
PYTHONPATH=$tools "$tools/bin/maturin" build --release --locked --manifest-path crates/python/Cargo.toml --out "$wheels"
python3 -m pip install --quiet --target "$site" pytest "$wheels"/tokenrouter-*.whl
# From another folder: the package must be the installed one.
cd crates/python/tests
PYTHONPATH=$site python3 -m pytest -q -p no:cacheprovider .
