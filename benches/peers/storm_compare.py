#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["stormpy>=2.0"]
# ///
"""Solves one threshold chain with this project and with the Storm model checker, and compares them.

`trbench optimize` explores, solves and exports the chain (DRN). Storm imports the export and computes the two long-run
averages (tokens and time per event) whose ratio is the throughput. Both run on the same machine, one after the other, each
in its own process.

    python benches/peers/storm_compare.py --trbench target/release/trbench            # 658 298 states
    python benches/peers/storm_compare.py --trbench target/release/trbench --small    # 14 257 states
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

LARGE = ["--latencies", "6.0", "11.3", "27.9", "--P", "[[0.6,0.25,0.15],[0.5,0.3,0.2],[0.5,0.3,0.2]]",
         "--C", "[[1,1,1],[1,1,1],[1,1,1]]", "--N", "4", "--thresholds", "1,1,1", "--delta", "0.1"]
SMALL = ["--latencies", "6.0", "27.9", "--P", "[[0.35,0.65],[1,0]]", "--C", "[[1,0],[1,0]]",
         "--N", "16", "--thresholds", "1,1", "--delta", "0.1"]
QUANTUM_MS = 0.1


def trbench(binary, chain, *more):
    """Runs the command; returns its JSON, seconds, and peak memory of all children so far in MB."""
    started = time.perf_counter()
    done = subprocess.run([binary, "optimize", *chain, "--exact", "--output", "json", *more],
                          check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return json.loads(done.stdout), seconds, peak


def storm(path):
    """Runs in a child process: imports the chain, computes both averages, prints one JSON line."""
    import stormpy  # noqa: PLC0415: only the child needs it

    started = time.perf_counter()
    model = stormpy.build_model_from_drn(str(path))
    imported = time.perf_counter() - started
    started = time.perf_counter()
    averages = {}
    for reward in ("tokens", "time"):
        formula = stormpy.parse_properties(f'R{{"{reward}"}}=? [ LRA ]')[0]
        result = stormpy.model_checking(model, formula)
        averages[reward] = result.get_value(model.initial_states[0])
    solved = time.perf_counter() - started
    print(json.dumps({
        "throughput": 1000 * averages["tokens"] / (averages["time"] * QUANTUM_MS),
        "states": model.nr_states, "nonzeros": model.nr_transitions, "import_s": imported, "solve_s": solved,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "version": stormpy.__version__,
    }))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trbench", default="target/release/trbench", help="path of the command")
    parser.add_argument("--small", action="store_true", help="the 14 257 states of two models at N = 16")
    parser.add_argument("--storm-child", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.storm_child:
        storm(arguments.storm_child)
        return
    chain = SMALL if arguments.small else LARGE
    ours, ours_s, ours_mb = trbench(arguments.trbench, chain)
    best = ours["best"]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "chain.drn"
        trbench(arguments.trbench, chain, "--export", "drn", "--export-to", str(path))
        size_mb = path.stat().st_size / 1e6
        started = time.perf_counter()
        child = subprocess.run([sys.executable, __file__, "--storm-child", str(path)],
                               check=True, capture_output=True, text=True)
        theirs_s = time.perf_counter() - started
        theirs = json.loads(child.stdout.strip().splitlines()[-1])
    assert (theirs["states"], theirs["nonzeros"]) == (best["states"], best["nonzeros"]), "not the same chain"
    difference = theirs["throughput"] / best["throughput_tok_s"] - 1
    print(f"chain: {best['states']} states, {best['nonzeros']} transitions, {size_mb:.0f} MB as DRN")
    print(f"{'':<28}{'throughput tok/s':>20}{'seconds':>10}{'peak MB':>10}")
    name = f"trbench, `{best['method']}`"
    print(f"{name:<28}{best['throughput_tok_s']:>20.10f}{ours_s:>10.2f}{ours_mb:>10.0f}   explore and solve")
    name = f"Storm {theirs['version']}"
    print(f"{name:<28}{theirs['throughput']:>20.10f}{theirs_s:>10.2f}{theirs['peak_mb']:>10.0f}   "
          f"import {theirs['import_s']:.2f} s, two averages {theirs['solve_s']:.2f} s, start of Python included")
    print(f"relative difference {difference:.1e}; residual here {best['residual']:.1e}")
    if abs(difference) > 1e-5:
        sys.exit("the answers differ")


if __name__ == "__main__":
    main()
