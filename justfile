# Recipes for everyday work. `just` lists them.

default:
    @just --list

# Build the command.
build:
    cargo build --release -p trbench

# Everything that CI checks; installs what is missing.
test:
    bash scripts/test.sh

# Format and lint.
lint:
    cargo fmt --all --check
    cargo clippy --release --workspace --all-targets -- -D warnings

# The main job: competition problems on the routed demo pair.
run *ARGS:
    cargo run --release -p trbench -- run --workload aime {{ARGS}}

# Serve the demo pair on 127.0.0.1:30000.
serve CONFIG="config/rstitch/demo.yaml":
    cargo run --release -p trbench -- serve --config {{CONFIG}}

# Stock clients against the server: the `openai` package and curl.
clients:
    cargo build --release -p trbench
    python3 -m pip install --quiet --target target/clients --upgrade openai
    PYTHONPATH=target/clients python3 scripts/clients.py --binary target/release/trbench

# A public load generator against the server; needs `pip install aiperf` (more than 1 GB).
load:
    cargo build --release -p trbench
    python3 scripts/load_client.py --binary target/release/trbench

# Random schedules and faults under virtual time; every invariant after every event. `just simulate --seeds 10000`.
simulate *ARGS:
    cargo run --release -p trbench -- simulate {{ARGS}}

# Three times the load that a system can take, with clients that give up. `just soak --duration 10m`.
soak *ARGS:
    cargo run --release -p trbench -- soak --config config/random/emulated.yaml {{ARGS}}

# The Python package: target/wheels/tokenrouter-*.whl, for every Python from 3.9 on.
wheel:
    python3 -m venv target/python
    target/python/bin/pip install --quiet maturin
    target/python/bin/maturin build --release --locked --manifest-path crates/python/Cargo.toml --out target/wheels

# Tests of the Python package, in a fresh environment.
test-python:
    bash scripts/test_python.sh

# What a routing method in Python costs per step.
bench-python: wheel
    target/python/bin/pip install --quiet --force-reinstall target/wheels/tokenrouter-*.whl
    target/python/bin/python -m tokenrouter.bench

# All benchmarks.
bench: bench-dtmc bench-kernels

# Solver benchmarks.
bench-dtmc:
    cargo bench -p tokenrouter-dtmc

# Decode and prefill speed of the CPU kernels against the machine's bounds.
bench-kernels:
    cargo run --release -p tokenrouter-kernels --example bench_decoder

# The same as JSON and beside candle, and llama.cpp where `llama-cpp-python` is installed: results/bench/cpu.json.
bench-cpu *ARGS:
    cargo build --release -p tokenrouter-kernels --example bench_decoder
    # Candle chooses its instructions when it is compiled.
    RUSTFLAGS="-C target-cpu=native" cargo build --release --target-dir target/native -p tokenrouter-engine --example bench_candle
    python3 benches/peers/llamacpp_bench.py {{ARGS}}

# The CUDA compiler, from pip: no GPU and no driver needed.
cuda-toolkit:
    bash scripts/cuda_toolkit.sh

# The command with CUDA; it starts on machines without, too.
build-cuda: cuda-toolkit
    cargo build --release --locked -p trbench --features cuda

# On a GPU machine: all kernels against their references, their speed, and that of whole steps: results/bench/gpu.json.
gpu-check *ARGS: build-cuda
    cargo run --release --locked -p trbench --features cuda -- bench-kernels {{ARGS}}

# The table of the README: single models, eager and delayed routing, two concurrencies, in one run.
compare:
    cargo run --release -p trbench -- run --workload aime --num-prompts 16 --max-tokens 128 --ignore-eos \
        --system single:small,single:large,async,delayed --concurrency 4,8

# All figures: emulated models, and the demo pair on this CPU. Goes on where it was interrupted. `just reproduce-figures full`
# takes four times the requests, and hours.
reproduce-figures MODE="" *ARGS:
    cargo run --release -p trbench -- figures {{ if MODE == "full" { "--full" } else { MODE } }} {{ARGS}}

# API documentation, warnings are errors.
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps

# Regenerate files that are derived from the code.
generate:
    cargo run --release -p trbench -- config reference > config/reference.yaml
    cargo run --release -p trbench -- config algorithms > docs/reference/algorithms.md
    python3 datasets/make_swe_style.py

# Execute the notebooks on the reference results and keep their output.
notebooks: wheel
    python3 -m venv target/notebooks
    target/notebooks/bin/pip install --quiet -r notebooks/requirements.txt target/wheels/tokenrouter-*.whl
    target/notebooks/bin/python notebooks/run.py --write
