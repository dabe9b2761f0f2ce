"""Draws the compatibility page: a row for each subject of the API's surface, with what our own server does of it.

It runs the manifest against the server in this process and reads verdicts and evidence. Invariant: what a row says
was seen in that run, and nothing in it depends on the time or on chance.
"""

import asyncio
import re
import tempfile
from functools import cache
from pathlib import Path

from tools.checked_server import KEYS, MCP_URL, MODEL, open_checked_server

from antiphon.checker import KINDS, MANIFEST, OURS, CheckOptions, Result, Verdict, group_subjects, run_check
from antiphon.checker.requirements.events import LONG_COMPACTION
from antiphon.client import AppTransport

#: The page shows whether, not how far: a short chain is enough.
ROUNDS = 4
WINDOW_TOKENS = 40_000
#: No probe of this server takes as long.
TIMEOUT_S = 30.0

OPENING = """# Compatibility

What Antiphon does with everything that the Responses API has, and the [requirements](requirements.md) that prove it:
this page is made by running them against the server with its scripted model, with a web search and an MCP server
configured. `antiphon check` runs the same ones against yours.

- **served**: done as the API says; for a field, its effect was seen or the response tells it.
- **a hint**: taken, and without effect on what is answered.
- **left out**: taken, and a [warning](extensions.md#warnings) in the response says that this model cannot do it.
- **refused**: an error with this status and code names it. Some of it is the scripted model's to refuse: another
  model may know it, a model server that itself speaks Responses is asked instead (see [fields](fields.md)), and
  `POST /chat/completions` is passed on to the model's own server, which a script does not have.
- **not served yet**: the route answers with this status and says so.
- **never sent**: no model server behind a chat API gives cause for it, or the row says what is sent instead.
"""


@cache
def render_compatibility() -> str:
    """The page without its notice."""
    results = asyncio.run(_try_manifest())
    parts = [OPENING]
    for kind, names in group_subjects().items():
        parts += [f"## {KINDS[kind]}\n", "| | here | proved by |", "|---|---|---|"]
        parts += [_draw_row(kind, name, results) for name in names]
        parts.append("")
    return "\n".join(parts)


async def _try_manifest() -> dict[str, Result]:
    with tempfile.TemporaryDirectory() as folder:
        async with open_checked_server(Path(folder)) as app:
            transport = AppTransport(app)
            options = CheckOptions(
                requirements=[item for item in MANIFEST if item.area != "restart"],
                seed=1,
                rounds=ROUNDS,
                window_tokens=WINDOW_TOKENS,
                timeout_s=TIMEOUT_S,
                api_key=KEYS["ada"],
                second_key=KEYS["ben"],
                mcp_url=MCP_URL,
            )
            report = await run_check(transport, MODEL, options)
            await transport.close()
    return {result.id: result for result in report.results}


def _draw_row(kind: str, name: str, results: dict[str, Result]) -> str:
    subject = f"{kind}:{name}"
    proofs = [item.id for item in MANIFEST if subject in item.covers and item.id in results]
    links = ", ".join(f"[{proof}](requirements.md#{make_anchor(proof)})" for proof in proofs)
    ours = " (ours)" if subject in OURS else ""
    return f"| `{name}`{ours} | {_tell(kind, [results[proof] for proof in _order(name, proofs)])} | {links} |"


def _order(name: str, proofs: list[str]) -> list[str]:
    """The requirement of the subject itself first."""
    return sorted(proofs, key=lambda proof: (not proof.endswith(f".{name}"), proof.startswith("errors.")))


def _tell(kind: str, results: list[Result]) -> str:
    """What was seen, in a few words."""
    broken = [result.id for result in results if result.verdict is Verdict.FAIL]
    if broken:
        return f"**broken**: {', '.join(broken)}"
    first = results[0]
    refused = _tell_refusal(first)
    if first.verdict is Verdict.UNKNOWN:
        if kind == "event" and first.needs == LONG_COMPACTION:
            return "never sent: `response.in_progress` is repeated instead"
        return "never sent" if kind == "event" else "not tried"
    if kind == "error":
        return f"refused{refused}" if refused else "as described"
    if kind == "event":
        return f"never sent: its cause is refused{refused}" if refused else "sent"
    if first.explanation.startswith("left out"):
        return "left out"
    if "it is a hint" in first.explanation:
        return "a hint"
    if not refused:
        return "served"
    is_missing = any(words in first.explanation for words in ("not served yet", "not served here"))
    return f"not served yet{refused}" if kind == "endpoint" and is_missing else f"refused{refused}"


def _tell_refusal(result: Result) -> str:
    status, code = result.evidence.get("http_status"), result.evidence.get("code")
    if not isinstance(status, int) or status < 400:
        return ""
    return f": {status}{f' `{code}`' if code else ''}"


def make_anchor(heading: str) -> str:
    """The anchor of a heading: `stream.cut` -> `streamcut`."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
