#!/bin/sh
# Does this server really continue from previous_response_id?
#
#   check-responses-state.sh URL MODEL [KEY]
#
# URL is a host (localhost:11434), a base (http://localhost:11434/v1) or a whole .../responses URL.
# The key can also stand in CHECK_API_KEY (arguments show in the list of processes). CHECK_TIMEOUT_S bounds
# the whole run, 300 seconds unless set. Needs sh and Python 3.6 or newer, standard library only.
#
# Four requests: plant a word; ask for it by id, with the full history, and with none of it. The prompt
# counts decide (by id = full history: pass; by id = no history: fail), the text supports. Only where neither
# decides are the four requests made again with a fresh word, three times at most.
#
# Exit status: 0 pass, 1 fail, 2 unknown (or wrong usage).

if ! command -v python3 >/dev/null 2>&1; then
    echo "unknown: this script needs python3" >&2
    exit 2
fi

exec python3 - "$@" <<'EOF'
import json
import os
import random
import re
import signal
import sys
import threading
import urllib.error
import urllib.request

WORDS = 3
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_TOLD_CHARS = 300


class Undecided(Exception):
    pass


class Refused(Exception):
    def __init__(self, status, told):
        super().__init__("the server answered %d: %s" % (status, told))
        self.status = status
        self.told = told


class NoRedirect(urllib.request.HTTPRedirectHandler):
    # A redirected request would carry the key to another host.
    def redirect_request(self, *args, **kwargs):
        return None


def tidy(text):
    """Printable and short: a server's text must not steer the terminal."""
    text = "".join(c if c.isprintable() else " " for c in str(text))
    text = re.sub(" +", " ", text).strip()
    return text if len(text) <= MAX_TOLD_CHARS else text[:MAX_TOLD_CHARS] + "..."


def resolve(url):
    """Without a scheme: https for a public name without a port, so that no key leaves in clear, else http."""
    if "://" not in url:
        host = url.split("/")[0]
        public = "." in host and not re.search(r":(?!443$)|^[0-9.]+$|\.local(host)?$", host)
        url = ("https://" if public else "http://") + url
    url = re.split("[?#]", url)[0].rstrip("/")
    if not re.match(r"https?://[^/@\s]+(/[^@\s]*)?$", url):
        raise Undecided("this is no http URL that can be used: " + tidy(url))
    if url.endswith("/responses"):
        return url
    if re.match(r"https?://[^/]+$", url):
        url += "/v1"
    return url + "/responses"


def post(url, key, timeout_s, body):
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if key:
        headers["Authorization"] = "Bearer " + key
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method="POST")
    opener = urllib.request.build_opener(NoRedirect)
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            raw = reply.read(MAX_BODY_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise Refused(error.code, read_error(error))
    except Exception as error:
        reason = getattr(error, "reason", None) or error
        raise Undecided("no answer from %s: %s" % (url, reason))
    if len(raw) > MAX_BODY_BYTES:
        raise Undecided("the answer is too long")
    return raw


def read_error(error):
    try:
        raw = error.read(65536).decode("utf-8", "replace")
    except Exception:
        return error.reason
    try:
        found = json.loads(raw)["error"]
        return found["message"] if isinstance(found, dict) else found
    except (ValueError, KeyError, TypeError, RecursionError):
        return raw or error.reason


def decode(raw):
    """The response object, or Undecided where this is none."""
    try:
        response = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Undecided("the answer is no JSON: " + raw[:100].decode("utf-8", "replace"))
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        raise Undecided("the answer is no response object: " + json.dumps(response)[:200])
    if response.get("status") not in ("completed", "incomplete"):
        told = json.dumps(response.get("error"))
        raise Undecided("the status of the response is %r: %s" % (response.get("status"), told))
    return response


def read_tokens(response):
    usage = response.get("usage")
    tokens = usage.get("input_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None


def read_text(response):
    texts = []
    for item in response["output"]:
        parts = item.get("content") if isinstance(item, dict) and item.get("type") == "message" else None
        for part in parts if isinstance(parts, list) else []:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                texts.append(part["text"])
    return " ".join(texts)


def make_word():
    chance = random.SystemRandom()
    return "".join(chance.choice("bdfgklmnprtvz") + chance.choice("aeiou") for _ in range(4))


def user(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def measure(ask):
    """One fresh word: the three counts, and whether the word came back, in the order id, full, none."""
    word = make_word()
    plant = user("Please remember this: the secret word is %s. Answer only: noted." % word)
    question = user("What is the secret word that I told you? Answer with that word alone.")
    planted = ask(input=[plant])
    if not isinstance(planted.get("id"), str) or not planted["id"]:
        raise Undecided("the first response has no id")
    try:
        by_id = ask(input=[question], previous_response_id=planted["id"])
    except Refused as refusal:
        if refusal.status in (400, 404, 405, 422, 501):
            print("asking by id: %s" % tidy(refusal))
            print("fail: the server does not continue from an id that it gave out itself")
            sys.exit(1)
        raise
    answers = [by_id, ask(input=[plant] + planted["output"] + [question]), ask(input=[question])]
    print("word: " + word)
    print("%-14s %12s  %-5s  %s" % ("", "input_tokens", "word", "text"))
    for name, answer in zip(("by id", "full history", "no history"), answers):
        tokens, text = read_tokens(answer), read_text(answer)
        told = "untold" if tokens is None else tokens
        print("%-14s %12s  %-5s  %s" % (name, told, "yes" if word in text.lower() else "no", tidy(text)))
    return [read_tokens(a) for a in answers], [word in read_text(a).lower() for a in answers]


def judge(counts, words):
    """(verdict, reason). The counts decide where they can; the text only if its controls hold."""
    by_id, full, none = counts
    usable = None not in counts and full > none
    if usable and by_id == full:
        return "pass", "by id counts as much as the full history"
    if usable and by_id == none:
        return "fail", "by id counts as little as no history: the history was dropped without a word"
    above = usable and by_id - none > max(2, none // 50, (full - none) / 2)
    near = above and abs(by_id - full) <= max(2, full // 50)
    told = "the counts do not decide"
    if not words[1] or words[2]:
        void = "the text is void (this model does not repeat a word from its own history)"
        return "unknown", told + ", and " + void
    if not words[0]:
        return "fail", told + "; the word is lost by id though the full history brings it"
    if usable and not near:
        return "unknown", told + ": neither the whole history nor none of it was counted"
    return "pass", told + "; the word came back by id"


def run(url, model, key, timeout_s):
    target = resolve(url)
    print("checking %s, model %s" % (tidy(target), tidy(model)))

    def ask(**fields):
        return decode(post(target, key, timeout_s, dict(fields, model=model)))

    for _ in range(WORDS):
        verdict, reason = judge(*measure(ask))
        if verdict != "unknown":
            break
    return verdict, reason


def finish(verdict, reason):
    print("%s: %s" % (verdict, tidy(reason)))
    sys.stdout.flush()
    return {"pass": 0, "fail": 1}.get(verdict, 2)


def main():
    arguments = sys.argv[1:]
    if len(arguments) not in (2, 3) or arguments[0].startswith("-"):
        sys.stderr.write("usage: check-responses-state.sh URL MODEL [KEY]\n")
        return 2
    key = arguments[2] if len(arguments) == 3 else os.environ.get("CHECK_API_KEY", "")
    if not re.match("[!-~]*$", key) or "\n" in key:
        return finish("unknown", "the key has characters that no header can carry")
    try:
        timeout_s = int(os.environ.get("CHECK_TIMEOUT_S") or 300)
    except ValueError:
        timeout_s = 0
    if timeout_s <= 0:
        return finish("unknown", "CHECK_TIMEOUT_S is no number of seconds")

    def give_up():
        os._exit(finish("unknown", "not finished in %d seconds" % timeout_s))

    # A socket's time-out starts again with each byte; this one bounds the whole run.
    watch = threading.Timer(timeout_s, give_up)
    watch.daemon = True
    watch.start()
    try:
        return finish(*run(arguments[0], arguments[1], key, timeout_s))
    except (Undecided, Refused) as stop:
        return finish("unknown", str(stop))


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(finish("unknown", "interrupted"))
EOF
