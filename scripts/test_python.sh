#!/usr/bin/env bash
# Builds the wheel of the Python package, installs it into its own folder and runs the package's tests against it.
# Needs Rust and Python 3 with pip. `pip --target` also works where the system's Python is read-only or has no venv.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
tools=$target/python-tools
site=$target/python-site
wheels=$target/wheels

python3 -m pip install --quiet --upgrade -c scripts/constraints.txt --target "$tools" maturin
rm -rf "$site" "$wheels"
# The same profile and features as everywhere else, so that the engine is not compiled again.
PYTHONPATH=$tools "$tools/bin/maturin" build --release --locked --manifest-path crates/python/Cargo.toml --out "$wheels"
python3 -m pip install --quiet -c scripts/constraints.txt --target "$site" pytest gguf safetensors jinja2 "$wheels"/tokenrouter-*.whl
# Run in another folder, so that Python imports the installed package.
cd crates/python/tests
# PyTorch is not installed here: the tests that need it are skipped, and say so.
PYTHONPATH=$site python3 -m pytest -q -rs -p no:cacheprovider .
