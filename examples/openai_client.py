"""Streams a chat from a TokenRouter server and marks each piece with the models that wrote it.

    pip install openai
    trbench serve --config config/rstitch/demo.yaml        # in another terminal
    python3 examples/openai_client.py [http://127.0.0.1:30000]
"""

import os
import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000"
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("OPENAI_API_KEY", "none"))
stream = client.chat.completions.create(
    model="tokenrouter",
    messages=[{"role": "user", "content": "What makes the sky blue?"}],
    max_tokens=48,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
    # Extensions of OpenAI's API go here, for example a threshold for this request.
    extra_body={"routing": {"seed": 7}},
)
usage = None
for chunk in stream:
    usage = chunk.usage or usage
    if chunk.choices and chunk.choices[0].delta.content:
        models = ",".join(chunk.routing["models"])
        print(f"[{models}]{chunk.choices[0].delta.content}", end="", flush=True)
print(f"\n{usage.completion_tokens} tokens, by model {usage.routing['tokens_by_model']}, {usage.routing['handoffs']} handoffs")
