#!/usr/bin/env python3
"""Two models, each on its own core: the speed of each while the other computes too, relative to its speed alone.

    cargo build --release -p trbench && python3 benches/together.py [--config config/rstitch/demo.yaml] [--rounds 5]

Runs alone and runs together alternate; each number is the median over the rounds. The models share the memory, and two
hyperthreads of one physical core share everything: look at `lscpu -e` before you blame the kernels.
"""

import argparse
import json
import statistics
import subprocess
import tempfile


def start(args, model, folder):
    command = [args.binary, "run", "--config", args.config, "--system", f"single:{model}", "--num-prompts", "4",
               "--max-tokens", str(args.tokens), "--ignore-eos", "--concurrency", str(args.concurrency),
               "--output", "json", "--out", folder]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def speed(process):
    out, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(process.returncode)
    return json.loads(out)[0]["output_throughput"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/trbench")
    parser.add_argument("--config", default="config/rstitch/demo.yaml")
    parser.add_argument("--models", default="small,large")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    models = args.models.split(",")
    alone, together = {m: [] for m in models}, {m: [] for m in models}
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(args.rounds):
            for model in models:
                alone[model].append(speed(start(args, model, f"{folder}/{round_}-alone-{model}")))
            both = [(m, start(args, m, f"{folder}/{round_}-both-{m}")) for m in models]
            for model, process in both:
                together[model].append(speed(process))
    print("| model | alone tok/s | together tok/s | kept |\n|---|---|---|---|")
    for model in models:
        a, b = statistics.median(alone[model]), statistics.median(together[model])
        print(f"| {model} | {a:.0f} | {b:.0f} | {b / a:.0%} |")


if __name__ == "__main__":
    main()
