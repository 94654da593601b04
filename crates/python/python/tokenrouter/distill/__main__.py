"""``python -m tokenrouter.distill``: makes a small student out of a large teacher."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from . import DistillError


def model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--teacher", required=True, help="the large model: a GGUF file, or a folder with safetensors")


def data_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trbench", default="trbench", metavar="PATH", help="program that writes text (default: %(default)s)")
    parser.add_argument("--prompts", metavar="JSONL", help="prompts of your own; default: the teacher makes them")
    parser.add_argument("--text", type=int, default=2_000_000, metavar="TOKENS", help="tokens to write (default: %(default)s)")
    parser.add_argument("--temperature", default="0,0.6,0.8,0.8,1", help="temperatures of the text (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=64, help="likeliest tokens that are kept (default: %(default)s)")
    parser.add_argument("--generate-threads", type=int, default=0, metavar="N", help="threads that write text; 0: all cores")


def student_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--layers", metavar="N,N,...", help="layers of the teacher that the student begins with (default: the first and last 3)")
    add("--sizes", metavar="NAME=N,...", help="new layers in place of that: layers, heads, kv_heads, ffn")
    add("--init", metavar="GGUF", help="begin with the layers of an earlier student")
    add("--output-vocab", type=int, default=16384, metavar="N", help="tokens that it can write (default: %(default)s)")
    add("--train-head", action="store_true", help="train the output matrix too, in place of sharing the teacher's")
    add("--length", type=int, default=256, help="tokens of a row (default: %(default)s)")
    add("--rows", type=int, default=8, help="rows of a step (default: %(default)s)")
    add("--learning-rate", type=float, default=2e-3, help="(default: %(default)s)")
    add("--weight-decay", type=float, default=0.01, help="(default: %(default)s)")
    add("--warmup", type=int, default=60, metavar="STEPS", help="steps over which the learning rate rises (default: %(default)s)")
    add("--held-out", type=int, default=32, metavar="N", help="one of N beginnings is held out (default: %(default)s)")
    add("--held-out-sequences", type=int, default=64, metavar="N", help="sequences in the curve's points (default: %(default)s)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")


def training_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--minutes", type=float, help="minutes of training, evaluations not counted")
    group.add_argument("--steps", type=int, help="steps of training")
    parser.add_argument("--checkpoint-minutes", type=float, default=10, help="between points of the curve, and checkpoints")
    quantize_option(parser)
    machine_options(parser)
    parser.add_argument("--compile", action="store_true", help="torch.compile: about a tenth faster, begins a minute later")


def machine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="`cpu`, `cuda` or `auto` (default)")
    parser.add_argument("--dtype", default="auto", choices=("auto", "f32", "bf16"), help="of matrix products")
    parser.add_argument("--threads", type=int, default=0, help="threads of training; 0: all cores")


def quantize_option(parser: argparse.ArgumentParser) -> None:
    from .export import QUANTIZATIONS

    parser.add_argument("--quantize", default="q8_0", choices=QUANTIZATIONS, help="format of matrices (default: %(default)s)")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tokenrouter.distill", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about)
        sub.add_argument("out", type=Path, help="folder of the run")
        return sub

    make = command("make", "Everything: text, training at a constant rate, as long again at a falling one, the student.")
    for options in (model_options, data_options, student_options, training_options):
        options(make)
    data = command("data", "The teacher's text only, in OUT/data.")
    model_options(data)
    data_options(data)
    data.add_argument("--length", type=int, default=256, help="tokens of a sequence (default: %(default)s)")
    data.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    train = command("train", "Trains at a constant rate, up to a total of minutes or steps. May be interrupted and called again.")
    model_options(train)
    train.add_argument("--data", nargs="+", required=True, metavar="FOLDER", help="text; files may be added while it trains")
    student_options(train)
    training_options(train)
    anneal = command("anneal", "Goes on for some minutes or steps while the learning rate falls to a fiftieth.")
    anneal.add_argument(
        "--source", type=Path, metavar="FOLDER", help="the run to continue, which is left as it is (default: OUT)"
    )
    anneal.add_argument("--output-vocab", type=int, metavar="N", help="choose the tokens that it can write anew, for all text")
    training_options(anneal)
    evaluate = command("evaluate", "Measures the student on text.")
    evaluate.add_argument("--data", nargs="+", required=True, metavar="FOLDER", help="text; all of it counts as held out")
    evaluate.add_argument("--sequences", type=int, default=256, help="most sequences (default: %(default)s)")
    evaluate.add_argument("--weights", metavar="GGUF", help="measure these weights, e.g. OUT/student.gguf")
    machine_options(evaluate)
    export = command("export", "Writes OUT/student.gguf from the last checkpoint.")
    quantize_option(export)
    return parser


def default_layers(teacher: str) -> str:
    """The first three and the last three."""
    from .teacher import open_model

    count = open_model(teacher).shape.layers
    return ",".join(str(layer) for layer in sorted({*range(min(3, count)), *range(max(0, count - 3), count)}))


def settings_of(args: argparse.Namespace, data: List[str]) -> Any:
    from .train import Settings

    layers = args.layers if args.layers or args.sizes else default_layers(args.teacher)
    names = ("sizes", "init", "output_vocab", "train_head", "length", "rows", "learning_rate", "weight_decay", "warmup")
    more = ("seed", "held_out", "held_out_sequences")
    chosen = {name: getattr(args, name) for name in names + more}
    return Settings(teacher=args.teacher, data=data, layers=layers, **chosen)


def trbench(args: argparse.Namespace, out: Path, prompts: Path, temperature: str, tokens: int, seed: int) -> None:
    """Runs ``trbench generate``, which goes on where it was interrupted."""
    options = {
        "--model": args.teacher,
        "--prompts": prompts,
        "--out": out,
        "--tokens": tokens,
        "--length": args.length,
        "--temperature": temperature,
        "--top-k": args.top_k,
        "--seed": seed,
        "--threads": args.generate_threads,
    }
    call = [args.trbench, "generate"] + [str(word) for option in options.items() for word in option]
    try:
        code = subprocess.run(call).returncode
    except OSError as error:
        raise DistillError(f"`{args.trbench}` cannot be run: {error}") from error
    if code == 130:
        raise KeyboardInterrupt
    if code:
        raise DistillError(f"`trbench generate` failed with exit code {code}")


def write_data(args: argparse.Namespace) -> List[str]:
    """The teacher's text: an eighth of it is the first round of prompts."""
    from . import prompts as made
    from .data import Corpus
    from .teacher import open_model

    folder = args.out / "data"
    file = folder / "prompts.jsonl"
    if args.prompts:
        made.write(file, made.read_own(args.prompts))
        trbench(args, folder / "text", file, args.temperature, args.text, args.seed)
        return [str(folder / "text")]
    teacher = open_model(args.teacher)
    if teacher.template is None:
        raise DistillError(f"`{args.teacher}` has no chat template: give prompts of your own with --prompts")
    around, first = made.chat(teacher.template, teacher.special), args.text // 8
    openings = folder / "openings.jsonl"
    made.write(openings, list(made.first_round(around, max(64, first // args.length), args.seed)))
    trbench(args, folder / "turns", openings, "1", first, args.seed)
    corpus = Corpus([str(folder / "turns")], teacher.shape.vocab)
    documents = [prompt for prompt in made.read_own(str(openings)) if "then" not in prompt]
    made.write(file, [*made.second_round(corpus), *documents])
    trbench(args, folder / "text", file, args.temperature, args.text - first, args.seed + 1)
    return [str(folder)]


def report(run: Any, result: Dict[str, Any]) -> None:
    from tqdm import tqdm

    from .evaluate import line
    from .export import write_curve

    write_curve(run.folder, run.curve)
    row = run.curve[-1]
    speed = f"{row['tokens'] / max(run.progress.seconds, 1e-9):.0f} tokens/s"
    head = f"{row['minutes']:.1f} min, step {row['step']}, {row['tokens'] / 1e6:.2f} million tokens ({speed})"
    tqdm.write(f"{head}, loss {row['loss']:.3f}; {line(result)}", file=sys.stderr)
    sys.stderr.flush()


def open_for_training(args: argparse.Namespace, settings: Optional[Any]) -> Any:
    import torch

    from .train import open_run

    if args.threads:
        torch.set_num_threads(args.threads)
    run = open_run(args.out, settings, args.device, args.dtype)
    if args.compile:
        run.student.compile_layers()
    return run


def limit_of(args: argparse.Namespace, share: float = 1.0) -> Any:
    from .train import Limit

    if args.minutes is not None:
        return Limit("seconds", args.minutes * 60 * share)
    return Limit("step", args.steps * share)


def constant(run: Any, args: argparse.Namespace, limit: Any) -> bool:
    from .train import train

    return train(run, limit, args.checkpoint_minutes * 60, report)


def falling(run: Any, args: argparse.Namespace, length: Any) -> bool:
    """Anneals over a length, or over what is left of it."""
    from .train import Limit

    progress = run.progress
    if progress.anneal is None:
        progress.anneal = {"unit": length.unit, "begin": progress.done(length.unit), "length": length.total}
    anneal = progress.anneal
    return constant(run, args, Limit(anneal["unit"], anneal["begin"] + anneal["length"]))


def finish(args: argparse.Namespace, complete: bool) -> int:
    """Writes the student and the recipe of a run that came to its end."""
    if not complete:
        print(f"interrupted: `{args.out}` has a checkpoint, the same command goes on", file=sys.stderr)
        return 130
    export_command(args)
    return 0


def export_command(args: argparse.Namespace) -> None:
    from .finish import export

    recipe = export(args.out, args.quantize, getattr(args, "device", "auto"), getattr(args, "dtype", "auto"))
    print(json.dumps(recipe["held_out"], indent=2))
    print(f"{args.out / recipe['student']['file']}: {recipe['student']['bytes'] / 1e6:.1f} MB")


def evaluate_command(args: argparse.Namespace) -> int:
    import torch

    from .data import Corpus
    from .evaluate import evaluate
    from .model import copy_written
    from .teacher import open_model
    from .train import load_trained

    if args.threads:
        torch.set_num_threads(args.threads)
    trained = load_trained(args.out, args.device, args.dtype)
    if args.weights:
        copy_written(trained.student, open_model(args.weights))
    corpus = Corpus(args.data, trained.teacher.shape.vocab)
    texts = list(corpus.held_out(trained.settings.length, args.sequences))
    print(json.dumps(evaluate(trained.student, texts, trained.token_ids), indent=2))
    return 0


def run(args: argparse.Namespace) -> int:
    if args.command == "data":
        print("\n".join(write_data(args)))
        return 0
    if args.command == "evaluate":
        return evaluate_command(args)
    if args.command == "export":
        export_command(args)
        return 0
    with locked(args.out):
        return anneal(args) if args.command == "anneal" else train_or_make(args)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps a second process from training in the same folder: each would overwrite the other's checkpoints."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DistillError(f"`{folder}`: another process trains in this folder") from error
        yield


def train_or_make(args: argparse.Namespace) -> int:
    data = args.data if args.command == "train" else write_data(args)
    opened = open_for_training(args, settings_of(args, data))
    if args.command == "train":
        if opened.progress.anneal is not None:
            raise DistillError(f"`{args.out}` was annealed; begin another run with --init {args.out}/student.gguf")
        return finish(args, constant(opened, args, limit_of(args)))
    complete = opened.progress.anneal is not None or constant(opened, args, limit_of(args, 0.5))
    return finish(args, complete and falling(opened, args, limit_of(args, 0.5)))


def anneal(args: argparse.Namespace) -> int:
    from .train import branch, choose_again

    if args.source:
        branch(args.source, args.out)
    opened = open_for_training(args, None)
    if args.output_vocab and opened.progress.anneal is None:
        choose_again(opened, args.output_vocab)
    return finish(args, falling(opened, args, limit_of(args)))


def main(words: Optional[List[str]] = None) -> int:
    args = arguments().parse_args(words)
    try:
        return run(args)
    except DistillError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"error: {error}; the extra `distill` of this package has what is needed", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
