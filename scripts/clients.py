"""Tests the server with unmodified clients: the `openai` package and curl.

    python3 scripts/clients.py --binary target/release/trbench [--config config/rstitch/demo.yaml]

Starts the server on a free port, runs every check, stops the server with SIGTERM in the middle of a stream, and exits with 1 at the first
failed check. Needs `pip install openai` and curl.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import openai

KEY = "sk-clients"
MODEL = "tokenrouter"
QUESTION = [{"role": "user", "content": "Name three colours."}]
PATIENCE_S = 60


def check(what, so, detail=""):
    print(f"{'ok' if so else 'FAILED'}  {what} {detail if not so else ''}".rstrip(), flush=True)
    if not so:
        sys.exit(1)


def start(binary, config, drain_s=1, key=KEY):
    env = dict(os.environ, TOKENROUTER_API_KEY=key)
    command = [binary, "serve", "--config", config, "--port", "0", "--log-format", "json", "--drain-timeout", str(drain_s)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    line = server.stdout.readline()
    url = re.match(r"listening on (http://\S+)", line)
    if not url:
        sys.exit(f"no address in {line!r}: {server.stderr.read()}")
    return server, url[1]


def metric(url, name):
    request = urllib.request.Request(f"{url}/metrics", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as reply:
        text = reply.read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"tokenrouter_{re.escape(name)}[{{ ]", line))


def wait_for(what, so):
    end = time.monotonic() + PATIENCE_S
    while not so():
        if time.monotonic() > end:
            check(what, False, f"not within {PATIENCE_S} s")
    check(what, True)


def synchronous(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    check("models", [model.id for model in client.models.list()] == [MODEL])
    whole = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_completion_tokens=12, temperature=0, logprobs=True, top_logprobs=2,
        extra_body={"routing": {"trace": True}},
    )
    text = whole.choices[0].message.content
    check("chat", bool(text) and whole.usage.completion_tokens == 12 and whole.choices[0].finish_reason == "length", whole)
    check("log-probabilities", len(whole.choices[0].logprobs.content) == 12)
    check("usage.routing", sum(whole.usage.routing["tokens_by_model"].values()) == 12)
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check("a stream is the same text", streamed == text, (streamed, text))
    check("usage of a stream", chunks[-1].usage.completion_tokens == 12)
    plain = client.completions.create(model=MODEL, prompt="The sky is", max_tokens=5, n=2, seed=1, stop=["\n\n\n"])
    check("completions", len(plain.choices) == 2)
    for what, status, arguments in [
        ("an unknown model is 404", 404, {"model": "gpt-4"}),
        ("a field that is not supported is 400", 400, {"logit_bias": {"1": 5}}),
        ("an unknown field is 400", 400, {"extra_body": {"temprature": 1}}),
    ]:
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, "max_tokens": 1, **arguments})
            check(what, False, "no error")
        except openai.APIStatusError as error:
            check(what, error.status_code == status, error)
    try:
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()
        check("a wrong key is 401", False)
    except openai.AuthenticationError:
        check("a wrong key is 401", True)


def early_close(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    gone = 'requests_completed_total{reason="disconnected"}'
    before = metric(url, gone)
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4000, stream=True,
                                            extra_body={"ignore_eos": True})
    for _, _chunk in zip(range(3), stream):
        pass
    stream.close()
    wait_for("a stream that is closed early is cancelled", lambda: metric(url, gone) == before + 1)
    wait_for("its KV blocks are free", lambda: metric(url, "kv_blocks_used") == 0)


async def asynchronous(url):
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)

    async def one(number):
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Count to {number}."}], max_tokens=10, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )
        tokens = 0
        async for chunk in stream:
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        return tokens

    check("eight streams at once", await asyncio.gather(*map(one, range(8))) == [10] * 8)
    slow = asyncio.create_task(client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=4000, extra_body={"ignore_eos": True}))
    while metric(url, "requests_open") == 0:
        await asyncio.sleep(0)
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    while metric(url, "kv_blocks_used") > 0:
        await asyncio.sleep(0)
    check("a cancelled task frees its KV blocks", True)
    await client.close()


def curl(url):
    script = os.path.join(os.path.dirname(__file__), "..", "examples", "curl.sh")
    result = subprocess.run(["bash", script, url], capture_output=True, text=True, env=dict(os.environ, API_KEY=KEY))
    check("examples/curl.sh", result.returncode == 0 and "[DONE]" in result.stdout, result.stdout + result.stderr)
    generated = subprocess.run(
        ["curl", "-sS", "--fail-with-body", f"{url}/generate", "-H", f"authorization: Bearer {KEY}", "-H",
         "content-type: application/json", "-d", '{"text": "The sky is", "sampling_params": {"max_new_tokens": 4}}'],
        capture_output=True, text=True)
    check("SGLang's form", json.loads(generated.stdout)["meta_info"]["completion_tokens"] == 4, generated.stdout)


def example(url):
    script = os.path.join(os.path.dirname(__file__), "..", "examples", "openai_client.py")
    result = subprocess.run([sys.executable, script, url], capture_output=True, text=True,
                            env=dict(os.environ, OPENAI_API_KEY=KEY))
    check("examples/openai_client.py", result.returncode == 0 and "tokens" in result.stdout, result.stdout + result.stderr)


def drain(server, url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4000, stream=True,
                                            extra_body={"ignore_eos": True})
    next(iter(stream))
    server.send_signal(signal.SIGTERM)
    try:
        for _chunk in stream:
            pass
        check("SIGTERM ends a long stream with an error", False)
    except openai.APIError as error:
        check("SIGTERM ends a long stream with an error", error.code == "shutting_down", error)
    check("the server ends", server.wait(PATIENCE_S) == 0)
    log = server.stderr.read()
    lines = [json.loads(line) for line in log.splitlines()]
    check("the log is JSON and names requests", any("request_id" in line for line in lines))
    check("neither keys nor prompts are in the log", KEY not in log and "colours" not in log)


def second_signal(binary, config):
    server, url = start(binary, config, drain_s=600)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=8000, stream=True,
                                            extra_body={"ignore_eos": True})
    next(iter(stream))
    server.send_signal(signal.SIGTERM)

    def draining():
        try:
            urllib.request.urlopen(f"{url}/ready").close()
        except urllib.error.HTTPError as error:
            return error.code == 503
        return False

    wait_for("a server that drains is not ready", draining)
    server.send_signal(signal.SIGTERM)
    check("a second signal quits", server.wait(PATIENCE_S) == 130)


def page(binary, config):
    """Opens the built-in page in a headless browser, if one is installed."""
    browser = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    if not browser:
        print("skipped  the page: no Chromium here", flush=True)
        return
    server, url = start(binary, config, key="")
    try:
        done = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom", f"{url}/"],
            capture_output=True, text=True, timeout=PATIENCE_S)
        rows = re.search(r'id="models">(.*?)</tbody>', done.stdout, re.DOTALL)
        shown = bool(rows) and "small (entry)</span>" in rows[1] and "large</span>" in rows[1]
        check("the page shows both models", shown, done.stdout or done.stderr)
        chart = re.search(r'<svg id="chart"[^>]*>(.*?)</svg>', done.stdout, re.DOTALL)
        check("the page draws nothing where there are no tokens", chart and not chart[1].strip(), done.stdout)
    finally:
        server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--config", default="config/rstitch/demo.yaml")
    arguments = parser.parse_args()
    server, url = start(arguments.binary, arguments.config)
    try:
        synchronous(url)
        early_close(url)
        asyncio.run(asynchronous(url))
        curl(url)
        example(url)
        drain(server, url)
        second_signal(arguments.binary, arguments.config)
        page(arguments.binary, arguments.config)
    finally:
        if server.poll() is None:
            server.kill()


main()
