"""Tests the server with a public load generator, aiperf.

    pip install aiperf        # more than 1 GB with its dependencies, so this is not part of the usual checks
    python3 scripts/load_client.py --binary target/release/trbench

aiperf counts prompt tokens with a small tokenizer that this script makes, so nothing is fetched. The server counts the tokens of answers.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

REQUESTS = 24


def make_tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([__doc__], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", bos_token="<eos>").save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--config", default="config/rstitch/demo.yaml")
    arguments = parser.parse_args()
    command = [arguments.binary, "serve", "--config", arguments.config, "--port", "0", "--log-level", "warn"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = re.match(r"listening on (\S+)", server.stdout.readline())[1]
        with tempfile.TemporaryDirectory() as folder:
            make_tokenizer(f"{folder}/tokenizer")
            subprocess.run(
                [os.path.join(os.path.dirname(sys.executable), "aiperf"), "profile", "--model", "tokenrouter", "--url", url,
                 "--endpoint-type", "chat", "--streaming", "--tokenizer", f"{folder}/tokenizer", "--use-server-token-count",
                 "--concurrency", "4", "--request-count", str(REQUESTS), "--isl", "64", "--osl", "16", "--extra-inputs",
                 "ignore_eos:true", "--ui", "none", "--output-artifact-dir", f"{folder}/out"],
                check=True,
            )
            report = json.loads(next(pathlib.Path(folder, "out").rglob("profile_export_aiperf.json")).read_text())
        figures = {name: report[name]["avg"] for name in
                   ("request_count", "time_to_first_token", "inter_token_latency", "output_sequence_length")}
        print(figures)
        right = figures["request_count"] == REQUESTS and figures["output_sequence_length"] == 16
        sys.exit(0 if right and not report.get("error_summary") else 1)
    finally:
        server.terminate()
        server.wait()


main()
