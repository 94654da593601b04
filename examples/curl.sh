#!/usr/bin/env bash
# Uses the API with curl: examples/curl.sh [http://127.0.0.1:30000]. Set API_KEY if the server needs a key.
set -euo pipefail
url=${1:-http://127.0.0.1:30000}
post() { curl -sS --fail-with-body -N -H "authorization: Bearer ${API_KEY:-none}" -H 'content-type: application/json' "$url$1" -d "$2"; echo; }

curl -sS --fail-with-body -H "authorization: Bearer ${API_KEY:-none}" "$url/v1/models"; echo
post /v1/chat/completions '{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}'
post /v1/chat/completions '{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0, "stream": true}'
post /v1/completions '{"prompt": "The sky is", "max_tokens": 8, "temperature": 0, "logprobs": 2}'
post /tokenize '{"prompt": "The sky is"}'
