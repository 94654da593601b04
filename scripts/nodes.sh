#!/usr/bin/env bash
# Tests two nodes under load in two network namespaces: delay, a partition that heals, and kill -9 and restart of each node. Run it by
# hand, as root, on Linux with iproute2 (ip, tc), curl and Python 3. It changes nothing outside its own namespaces.
#
#   sudo scripts/nodes.sh [path of the trbench binary]
set -euo pipefail
cd "$(dirname "$0")/.."
trbench=$(realpath "${1:-target/release/trbench}")
work=$(mktemp -d)
a=trnode-a-$$ b=trnode-b-$$
small='' large='' load=''

cleanup() {
    for pid in $load $small $large; do kill -9 "$pid" 2>/dev/null || true; done
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
step() { printf '\n== %s ==\n' "$*"; }
fail() {
    echo "FAILED: $*"
    tail -n 15 "$work"/*.log
    exit 1
}

step "namespaces"
ip netns add "$a"
ip netns add "$b"
ip link add veth-a netns "$a" type veth peer name veth-b netns "$b"
ip -n "$a" addr add 10.77.0.1/24 dev veth-a
ip -n "$b" addr add 10.77.0.2/24 dev veth-b
for side in a b; do
    ip -n "${!side}" link set lo up
    ip -n "${!side}" link set "veth-$side" up
done

key_small=$("$trbench" keygen "$work/small.key")
key_large=$("$trbench" keygen "$work/large.key")
cat >"$work/nodes.yaml" <<YAML
models:
  small: {emulated: {latency_ms: 2}}
  large: {emulated: {latency_ms: 5}}
routing: {method: random, semantics: borrow, probability: 0.3}
system:
  entry_model: small
  max_active: 8
  max_tokens_per_request: 512
  peer_timeout_ms: 2000
  allow_remote_peers: true
  peer_endpoints:
    small: {bind: "tcp://10.77.0.1:30001", key_file: small.key, $key_small}
    large: {bind: "tcp://10.77.0.2:30001", key_file: large.key, $key_large}
batching: {thresholds: [1, 2]}
YAML

start_small() {
    ip netns exec "$a" "$trbench" serve -c "$work/nodes.yaml" --local-model small --port 30000 >>"$work/small.log" 2>&1 &
    small=$!
}
start_large() {
    ip netns exec "$b" "$trbench" serve -c "$work/nodes.yaml" --local-model large --port 30000 >>"$work/large.log" 2>&1 &
    large=$!
}
get() { ip netns exec "$1" curl -s -m 5 "http://127.0.0.1:30000$2"; }
metric() { get "$1" /metrics | awk -v name="tokenrouter_$2" 'index($1, name) == 1 {sum += $2} END {print sum + 0}'; }
# Waits until a command succeeds. Fails after 30 seconds.
until_true() {
    local what=$1 deadline=$((SECONDS + 30))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || fail "not within 30 s: $what"
        sleep 0.1
    done
}
ready() { get "$1" /ready | grep -q '"ready"'; }
both_ready() { ready "$a" && ready "$b"; }
no_blocks() { [ "$(metric "$1" kv_blocks_used)" = 0 ]; }
idle() { no_blocks "$a" && no_blocks "$b"; }

# Eight clients, one request after the other; each line is `ok TOKENS`, `error WHY` or `refused WHY`.
cat >"$work/load.py" <<'PYTHON'
import http.client, json, sys, threading, time
until, out, lock = time.time() + float(sys.argv[1]), open(sys.argv[2], "a"), threading.Lock()
def client(index):
    n = 0
    while time.time() < until:
        n += 1
        kind = (index + n) % 4
        body = {"model": "default", "prompt": [kind * 7 + i for i in range(40)], "max_tokens": 48, "temperature": 0, "seed": kind}
        start = time.time()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", 30000, timeout=30)
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
            answer = json.loads(text)
            line = f"ok {kind} {json.dumps(answer['choices'][0], sort_keys=True)}" if response.status == 200 and "choices" in answer \
                else f"error {response.status} {text[:160]}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            line = f"refused {error!r}"
            time.sleep(0.2)
        with lock:
            print(f"{time.time() - start:.3f} {line}", file=out, flush=True)
threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
PYTHON
start_load() {
    : >"$work/$2.out"
    ip netns exec "$a" python3 "$work/load.py" "$1" "$work/$2.out" &
    load=$!
}
summary() {
    wait "$load" || true
    load=''
    printf '%s: %s ok, %s errors, %s refused; longest %s s\n' "$1" "$(grep -c ' ok ' "$work/$1.out" || true)" \
        "$(grep -c ' error ' "$work/$1.out" || true)" "$(grep -c ' refused ' "$work/$1.out" || true)" \
        "$(sort -n "$work/$1.out" | tail -1 | cut -d' ' -f1)"
    grep ' error ' "$work/$1.out" | cut -d' ' -f3- | sed 's/request [0-9]*/request N/' | sort | uniq -c | head -4 || true
    # The same request always has the same answer.
    local answers
    answers=$(grep ' ok ' "$work/$1.out" "$work"/*.out -h | cut -d' ' -f3- | sort -u | wc -l)
    [ "$answers" -le 4 ] || fail "$answers different answers to 4 requests"
}
no_errors() { ! grep -q ' error \| refused ' "$work/$1.out" || fail "there were errors"; }

step "start"
start_small
start_large
until_true "both nodes ready" both_ready

step "load without faults"
start_load 5 plain
summary plain
no_errors plain

# Not every kernel has netem.
netem() {
    ip netns exec "$a" tc qdisc replace dev veth-a root netem "$@" 2>"$work/tc.log" &&
        ip netns exec "$b" tc qdisc replace dev veth-b root netem "$@"
}

step "delay of 5 ms in each direction, with jitter"
if netem delay 5ms 2ms; then
    start_load 5 delay
    summary delay
    no_errors delay
    step "2 % loss"
    netem delay 1ms loss 2%
    start_load 5 loss
    summary loss
    no_errors loss
    ip netns exec "$a" tc qdisc del dev veth-a root
    ip netns exec "$b" tc qdisc del dev veth-b root
else
    echo "SKIPPED, and so is loss: this kernel has no netem ($(head -n 1 "$work/tc.log"))"
fi

step "partition of 1 s (peer_timeout is 2 s)"
start_load 6 short
sleep 2
ip -n "$b" link set veth-b down
sleep 1
ip -n "$b" link set veth-b up
summary short
no_errors short
echo "losses: $(metric "$a" peer_losses_total) at small, $(metric "$b" peer_losses_total) at large"

step "partition of 5 s, then healed"
start_load 10 long
sleep 2
ip -n "$b" link set veth-b down
sleep 4
until_true "large has freed everything" no_blocks "$b"
sleep 1
ip -n "$b" link set veth-b up
until_true "both nodes ready" both_ready
summary long
echo "losses: $(metric "$a" peer_losses_total) at small, $(metric "$b" peer_losses_total) at large"
grep -q ' error ' "$work/long.out" || fail "nothing noticed the partition"
until_true "both nodes hold nothing" idle

step "kill -9 of large, and restart"
start_load 8 large
sleep 2
kill -9 "$large"
sleep 3
start_large
until_true "both nodes ready" both_ready
summary large
until_true "both nodes hold nothing" idle

step "kill -9 of small, and restart"
start_load 8 small
sleep 2
kill -9 "$small"
sleep 1
start_small
until_true "both nodes ready" both_ready
summary small
until_true "both nodes hold nothing" idle

step "load without faults, at the end"
start_load 5 end
summary end
no_errors end
until_true "both nodes hold nothing" idle
printf '\nall as promised\n'
