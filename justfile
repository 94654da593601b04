# Recipes for everyday work. `just` lists them.

default:
    @just --list

# Build the command.
build:
    cargo build --release -p trbench

# Check format, lints and unit tests. Fast enough to run while editing.
check:
    cargo fmt --all --check
    cargo clippy --release --workspace --all-targets -- -D warnings
    cargo test --release --workspace --lib --quiet

# Everything that CI checks. Installs what is missing.
test:
    bash scripts/test.sh

# Format, lints, and the licences and sources of dependencies.
lint:
    cargo fmt --all --check
    cargo clippy --release --workspace --all-targets -- -D warnings
    bash scripts/deny.sh

# Run competition problems on the routed demo pair.
run *ARGS:
    cargo run --release -p trbench -- run --workload aime {{ARGS}}

# Serve the demo pair on 127.0.0.1:30000.
serve CONFIG="config/rstitch/demo.yaml":
    cargo run --release -p trbench -- serve --config {{CONFIG}}

# Test the server with stock clients: the `openai` package and curl.
clients:
    cargo build --release -p trbench
    python3 -m pip install --quiet --target target/clients --upgrade -c scripts/constraints.txt openai
    PYTHONPATH=target/clients python3 scripts/clients.py --binary target/release/trbench

# Test the server with a public load generator. Needs `pip install aiperf` (more than 1 GB).
load:
    cargo build --release -p trbench
    python3 scripts/load_client.py --binary target/release/trbench

# Run random schedules and faults under virtual time, and check every invariant after every event: `just simulate --seeds 10000`.
simulate *ARGS:
    cargo run --release -p trbench -- simulate {{ARGS}}

# Overload a system to three times its capacity, with clients that give up: `just soak --duration 10m`.
soak *ARGS:
    cargo run --release -p trbench -- soak --config config/random/emulated.yaml {{ARGS}}

# Build the Python package: target/wheels/tokenrouter-*.whl, for Python 3.9 and later.
wheel:
    python3 -m venv target/python
    target/python/bin/pip install --quiet -c scripts/constraints.txt maturin
    target/python/bin/maturin build --release --locked --manifest-path crates/python/Cargo.toml --out target/wheels

# Test the Python package in a fresh environment.
test-python:
    bash scripts/test_python.sh

# Measure what a routing method in Python costs per step.
bench-python: wheel
    target/python/bin/pip install --quiet --force-reinstall target/wheels/tokenrouter-*.whl
    target/python/bin/python -m tokenrouter.bench

# Run all benchmarks.
bench: bench-dtmc bench-kernels

# Benchmark the solver of the throughput model.
bench-dtmc:
    cargo bench -p tokenrouter-dtmc

# Measure decode and prefill speed of the CPU kernels, and compare them with the machine's limits.
bench-kernels:
    cargo run --release -p tokenrouter-kernels --example bench_decoder

# The same in comparison with candle, and with llama.cpp where `llama-cpp-python` is installed: results/bench/cpu.json.
bench-cpu *ARGS:
    cargo build --release -p tokenrouter-kernels --example bench_decoder
    # Candle chooses its instruction set at compile time.
    RUSTFLAGS="-C target-cpu=native" cargo build --release --target-dir target/native -p tokenrouter-engine --example bench_candle
    python3 benches/peers/llamacpp_bench.py {{ARGS}}

# Measure how long `/health` takes while the server works on the largest bodies that it takes.
bench-health *ARGS:
    cargo run --release -p tokenrouter-engine --example bench_health {{ARGS}}

# Fetch the CUDA compiler with pip. Needs no GPU and no driver.
cuda-toolkit:
    bash scripts/cuda_toolkit.sh

# Build the command with CUDA. It also starts on machines without CUDA.
build-cuda: cuda-toolkit
    cargo build --release --locked -p trbench --features cuda

# On a GPU machine: check all kernels against their references, and time kernels and whole steps: results/bench/gpu.json.
gpu-check *ARGS: build-cuda
    cargo run --release --locked -p trbench --features cuda -- bench-kernels {{ARGS}}

# Compare single models with eager and delayed routing at two concurrencies, in one run.
compare:
    cargo run --release -p trbench -- run --workload aime --num-prompts 16 --max-tokens 128 --ignore-eos \
        --system single:small,single:large,async,delayed --concurrency 4,8

# Draw all figures: emulated models, and the demo pair on this CPU. Continues where it was interrupted.
# `just reproduce-figures full` runs four times the requests and takes hours.
reproduce-figures MODE="" *ARGS:
    cargo run --release -p trbench -- figures {{ if MODE == "full" { "--full" } else { MODE } }} {{ARGS}}

# Build the API documentation. Warnings are errors.
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps

# Regenerate the files that are derived from the code.
generate:
    cargo run --release -p trbench -- config reference > config/reference.yaml
    cargo run --release -p trbench -- config algorithms > docs/reference/algorithms.md
    python3 datasets/make_swe_style.py

# Execute the notebooks on the reference results and save their output.
notebooks: wheel
    python3 -m venv target/notebooks
    target/notebooks/bin/pip install --quiet -c scripts/constraints.txt -r notebooks/requirements.txt target/wheels/tokenrouter-*.whl
    target/notebooks/bin/python notebooks/run.py --write
