#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["llama-cpp-python>=0.3.16"]
# ///
"""Decode and prefill speed on the CPU: compares our kernels with llama.cpp, candle and the limits of the machine.

Our kernels run in `bench_decoder`, with random weights of the shape of SmolLM2-135M (the speed does not depend on their
values). llama.cpp runs through `llama-cpp-python`, if that is installed, on the GGUF file of the demo and on the files that
llama.cpp's quantiser makes from it. Candle runs through `bench_candle`, if that is built, for one round because it is slow.
The programs alternate for `--rounds` rounds. A cell is the median over the rounds of the medians over the steps; with
`--best`, for machines that others use too, it is the best of all. None of them samples; our program finds the largest logit.

    cargo build --release -p tokenrouter-kernels --example bench_decoder
    RUSTFLAGS="-C target-cpu=native" cargo build --release --target-dir target/native -p tokenrouter-engine --example bench_candle
    pip install llama-cpp-python        # compiles llama.cpp for this machine
    python benches/peers/llamacpp_bench.py [--model FILE.gguf] [--threads 1,2] [--out results/bench/cpu.json]
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

# Formats and llama.cpp's number of the file type. None: the unchanged file.
FORMATS = {"q4_1": None, "q4_0": 2, "q8_0": 7, "bf16": 32, "f32": 0}
# For each of our formats, the one that holds (nearly) the same weights.
SAME = {"q4_1+q8_0": "q4_1", "bf16": "bf16", "f32": "f32"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    demo = pathlib.Path.home() / ".cache/trbench/demo/SmolLM2-135M-Instruct.Q4_1.gguf"
    parser.add_argument("--model", type=pathlib.Path, default=demo)
    parser.add_argument("--ours", default="target/release/examples/bench_decoder")
    parser.add_argument("--candle", default="target/native/release/examples/bench_candle")
    parser.add_argument("--weights", default="q4_1+q8_0,bf16,f32", help="ours")
    parser.add_argument("--formats", default=",".join(FORMATS), help="llama.cpp's")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batch", default="1,2,4,8,16")
    parser.add_argument("--ctx", default="16,512")
    parser.add_argument("--prefill", default="128,512")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/bench/cpu.json"))
    parser.add_argument("--child", metavar="FORMAT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)

    with tempfile.TemporaryDirectory() as folder:
        files = requantised(args, pathlib.Path(folder))
        bounds, rows = measure(args, files)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"bounds": bounds, "rows": rows}, indent=1) + "\n")
    table(rows, [name for name in FORMATS if name in files])
    print(f"\nwritten to {args.out}")


def requantised(args, folder):
    """Returns a file for each requested format; none if llama.cpp or the model is missing."""
    try:
        import llama_cpp  # noqa: PLC0415: optional
    except ImportError:
        print("llama-cpp-python is not installed: its columns are left out", file=sys.stderr)
        return {}
    if not args.model.exists():
        print(f"{args.model} does not exist: llama.cpp's columns are left out (`trbench fetch` gets the demo model)",
              file=sys.stderr)
        return {}
    quiet = silence(llama_cpp)
    files = {}
    for name in args.formats.split(","):
        files[name] = args.model
        if FORMATS[name] is not None:
            files[name] = folder / f"{name}.gguf"
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype, params.allow_requantize = FORMATS[name], True
            if llama_cpp.llama_model_quantize(str(args.model).encode(), str(files[name]).encode(), params) != 0:
                sys.exit(f"llama.cpp cannot make {name} of {args.model}")
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(0), None)
    del quiet
    return files


def silence(llama):
    """Drops llama.cpp's log as long as the returned object is alive."""
    callback = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(callback, None)
    return callback


def measure(args, files):
    """Runs the programs alternately. Returns the limits of the machine and one row per phase."""
    shared = ["--threads", args.threads, "--batch", args.batch, "--ctx", args.ctx, "--prefill", args.prefill,
              "--runs", str(args.runs)]
    bounds, ours, theirs = [], {}, {}
    for _ in range(args.rounds):
        command = [args.ours, *shared, "--weights", args.weights, "--kv", "f16", "--json", *["--min"] * args.best]
        for line in lines(command):
            if "phase" in line:
                ours.setdefault(key(line) + (line["weights"],), []).append(line)
            else:
                bounds.append(line)
        for name, file in files.items():
            command = [sys.executable, __file__, *shared, "--model", str(file), "--child", name,
                       *["--best"] * args.best]
            for line in lines(command):
                theirs.setdefault(key(line) + (name,), []).append(line["tok_s"])
    candle = candles(args)
    middle = max if args.best else statistics.median
    rows = []
    for (phase, threads, batch, ctx, weights), found in ours.items():
        cells = {name: middle(theirs[(phase, threads, batch, ctx, name)]) for name in files
                 if (phase, threads, batch, ctx, name) in theirs}
        rows.append({
            "phase": phase, "weights": weights, "threads": threads, "batch": batch, "ctx": ctx,
            "ours_tok_s": middle(line["ours_tok_s"] for line in found), "candle_tok_s": candle.get((phase, threads, batch, ctx, weights)),
            "llamacpp_tok_s": cells.get(SAME[weights]), "llamacpp_all_tok_s": cells,
            "bound_tok_s": middle(line["bound_tok_s"] for line in found),
        })
    return bounds, rows


def candles(args):
    """Candle's speeds on the same file; none if the example or the model is missing."""
    if not (pathlib.Path(args.candle).exists() and args.model.exists()):
        print(f"{args.candle} or the model is missing: candle's column is left out", file=sys.stderr)
        return {}
    speeds = {}
    for threads in args.threads.split(","):
        for line in lines([args.candle, str(args.model), threads, *args.weights.split(",")]):
            speeds[key(line) + (line["weights"],)] = line["tok_s"]
    return speeds


def lines(command):
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def key(line):
    return (line["phase"], line["threads"], line["batch"], line["ctx"])


def table(rows, formats):
    print("| phase | weights | threads | batch | ctx | ours tok/s | of bound | candle | ours / it |"
          + "".join(f" llama.cpp {name} | ours / it |" for name in formats))
    print("|---" * (9 + 2 * len(formats)) + "|")
    for row in rows:
        ours = row["ours_tok_s"]
        cells = [row["phase"], row["weights"], row["threads"], row["batch"], row["ctx"], f"{ours:.0f}",
                 f"{ours / row['bound_tok_s']:.0%}"]
        for other in [row["candle_tok_s"], *(row["llamacpp_all_tok_s"].get(name) for name in formats)]:
            cells += [f"{other:.0f}", f"{ours / other:.2f}"] if other else ["", ""]
        print("| " + " | ".join(map(str, cells)) + " |")


def child(args):
    """Runs llama.cpp alone in its own process, and prints one JSON line per phase."""
    import llama_cpp as llama  # noqa: PLC0415: only the child needs it

    llama.llama_backend_init()
    _quiet = silence(llama)
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(args.model).encode(), params)
    numbers = {name: [int(x) for x in getattr(args, name).split(",") if x]
               for name in ("threads", "batch", "ctx", "prefill")}
    middle = min if args.best else statistics.median
    phases = [("decode", batch, ctx) for ctx in numbers["ctx"] for batch in numbers["batch"]]
    phases += [("prefill", 1, new) for new in numbers["prefill"]]
    for threads in numbers["threads"]:
        for phase, batch, ctx in phases:
            steps = decode(llama, model, threads, batch, ctx, args.runs) if phase == "decode" else \
                prefill(llama, model, threads, ctx, args.runs)
            tokens = batch if phase == "decode" else ctx
            print(json.dumps({"phase": phase, "threads": threads, "batch": batch, "ctx": ctx,
                              "tok_s": tokens / middle(steps)}))


def context(llama, model, threads, sequences, positions):
    params = llama.llama_context_default_params()
    params.n_ctx = sequences * (-(-positions // 256) * 256)
    params.n_batch = params.n_ubatch = 512
    params.n_seq_max = sequences
    params.n_threads = params.n_threads_batch = threads
    return llama.llama_init_from_model(model, params)


def step(llama, ctx, rows):
    """Runs one forward pass over (token, position, sequence, wants logits)."""
    batch = llama.llama_batch_init(len(rows), 0, 1)
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = sequence
    started = time.perf_counter()
    code = llama.llama_decode(ctx, batch)
    llama.llama_synchronize(ctx)
    seconds = time.perf_counter() - started
    llama.llama_batch_free(batch)
    if code != 0:
        sys.exit(f"llama_decode: {code}")
    return seconds


def decode(llama, model, threads, batch, ctx, runs):
    state = context(llama, model, threads, batch, ctx + runs + 1)
    for sequence in range(batch):
        for start in range(0, ctx, 256):
            rows = [(i * 7 % 49152, i, sequence, 0) for i in range(start, min(ctx, start + 256))]
            step(llama, state, rows)
    steps = [step(llama, state, [(5, ctx + i, sequence, 1) for sequence in range(batch)]) for i in range(runs + 1)]
    llama.llama_free(state)
    return steps[1:]


def prefill(llama, model, threads, new, runs):
    state = context(llama, model, threads, 1, new)
    steps = []
    for _ in range(runs + 1):
        llama.llama_memory_clear(llama.llama_get_memory(state), True)
        steps.append(step(llama, state, [(5, i, 0, i == new - 1) for i in range(new)]))
    llama.llama_free(state)
    return steps[1:]


if __name__ == "__main__":
    main()
