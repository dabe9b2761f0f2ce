#!/usr/bin/env bash
# What a newcomer does: clone, `make run` (which downloads the model), one request, one that continues it, with an
# empty environment and nothing cached; then a second start, which finds everything.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
server=
stop() {
    [ -z "$server" ] || kill -- -"$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    server=
}
cleanup() {
    stop
    rm -rf "$work"
}
trap cleanup EXIT

# start SECONDS: `make run` in the clone until it serves; sets `base`.
start() {
    local began=$SECONDS
    : >"$work/out"
    set -m
    env -i PATH="$PATH" HOME="$work" TERM=dumb make run ARGS="--port 0 --data $work/data" \
        >"$work/out" 2>"$work/err" &
    server=$!
    set +m
    while ! grep -q '^antiphon: serving on' "$work/out"; do
        kill -0 "$server" 2>/dev/null || { cat "$work/out" "$work/err"; echo "fresh clone: make run ended"; exit 1; }
        [ $((SECONDS - began)) -lt "$1" ] || { cat "$work/out" "$work/err"; echo "fresh clone: not ready in time"; exit 1; }
        read -rt 0.1 <> <(:) || true
    done
    base=$(sed -n 's/^antiphon: serving on //p' "$work/out")
    echo "fresh clone: ready after $((SECONDS - began)) s"
}

git clone -q "$root" "$work/antiphon"
cd "$work/antiphon"
start 400
python3 - "$base" <<'PY'
import json, sys, urllib.request

base = sys.argv[1]


def ask(path, body=None):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(base + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


model = ask("/models")["data"][0]["id"]


def create(**body):
    return ask("/responses", {"model": model, "temperature": 0, "max_output_tokens": 48, **body})


def read(response):
    return response["output"][0]["content"][0]["text"], response["usage"]["input_tokens"]


first = create(input="My name is Marisol. Say hello to me.")
asked = create(input="What is my name?", previous_response_id=first["id"])
bare = create(input="What is my name?")
print("fresh clone:", model, read(first), read(asked), read(bare))
assert read(asked)[1] > read(bare)[1]
PY
stop
start 60
echo "fresh clone: ok"
