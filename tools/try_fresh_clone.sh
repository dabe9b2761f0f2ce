#!/usr/bin/env bash
# What a newcomer does: clone, `make run`, one request, one that continues it, with an empty environment.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill -- -"$server" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

git clone -q "$root" "$work/antiphon"
cd "$work/antiphon"
set -m
env -i PATH="$PATH" HOME="$work" TERM=dumb ${PIP_CONFIG_FILE:+PIP_CONFIG_FILE="$PIP_CONFIG_FILE"} \
    make run ARGS="--port 0 --data $work/data" >"$work/out" 2>"$work/err" &
server=$!
set +m
for _ in $(seq 1200); do
    grep -q '^antiphon: serving on' "$work/out" && break
    kill -0 "$server" 2>/dev/null || { cat "$work/out" "$work/err"; echo "fresh clone: make run ended"; exit 1; }
    read -rt 0.1 <> <(:) || true
done
base=$(sed -n 's/^antiphon: serving on //p' "$work/out")
[ -n "$base" ] || { cat "$work/out" "$work/err"; echo "fresh clone: not ready in time"; exit 1; }
python3 - "$base" <<'PY'
import json, sys, urllib.request

base = sys.argv[1]


def create(**body):
    data = json.dumps({"model": "scripted", **body}).encode()
    request = urllib.request.Request(base + "/responses", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


first = create(input="My name is Marmalade.")
asked = create(input="What is my name?", previous_response_id=first["id"])
bare = create(input="What is my name?")
print("fresh clone:", asked["output"][0]["content"][0]["text"], asked["usage"]["input_tokens"], bare["usage"]["input_tokens"])
assert "Marmalade" in asked["output"][0]["content"][0]["text"]
assert asked["usage"]["input_tokens"] > bare["usage"]["input_tokens"]
PY
echo "fresh clone: ok"
