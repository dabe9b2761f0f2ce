"""A conversation that is far longer than the window of the embedded model: it is compacted by policy, and goes on.

The model is small, so nothing here looks at what its summaries say: what must be kept is kept whatever they say.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tools.fetch_model import fetch_model

from antiphon.backends.local import DEFAULT_MODEL, ModelError
from antiphon.client import NetworkTransport, ResponsesClient, TransportLimits
from tests.real.processes import AntiphonServer, run_serve

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(320)]

WINDOW_TOKENS = 4096
ROUNDS = 20
#: About so many tokens are said in each round, so that all of them are about twice the window.
SENTENCES = 16
PLANTED = "/srv/lighthouse/keepers/register_1789.toml"
#: The round in which it is said by a tool's result, in the middle of what it gave.
PLANTED_ROUND = 3
#: A round with a summary is two prompts and two answers.
ANSWER_S = 150.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AntiphonServer]:
    """`antiphon serve` as a user starts it, with a small window and compaction by policy."""
    try:
        model = fetch_model(DEFAULT_MODEL)
    except ModelError as error:
        pytest.fail(f"these tests need the default model: {error}", pytrace=False)
    folder = tmp_path_factory.mktemp("compaction")
    environment = {
        "ANTIPHON_LOCAL__CACHE": str(model.parent),
        "ANTIPHON_LOCAL__CONTEXT_TOKENS": str(WINDOW_TOKENS),
        "ANTIPHON_LOCAL__PARALLEL": "1",
        "ANTIPHON_COMPACTION__POLICY": "auto",
        "ANTIPHON_COMPACTION__SUMMARY_MAX_TOKENS": "256",
    }
    with run_serve([], folder, environment) as running:
        yield running
    log = (folder / "antiphon.log").read_text("utf-8")
    assert "Traceback" not in log, log


def make_round(number: int) -> list[dict[str, Any]]:
    """A call, a result of some hundred tokens, and what the user says to it."""
    lines = [
        f"Room {number}-{n}: painted in {1700 + number * 7 + n} by keeper {n * 3}." for n in range(SENTENCES)
    ]
    if number == PLANTED_ROUND:
        lines[SENTENCES // 2] = f"The register of all keepers is {PLANTED}."
    return [
        {
            "type": "function_call",
            "call_id": f"call_{number}",
            "name": "read_notes",
            "arguments": json.dumps({"page": number}),
        },
        {"type": "function_call_output", "call_id": f"call_{number}", "output": "\n".join(lines)},
        {"role": "user", "content": f"Page {number} is read. Say one short word."},
    ]


def test_a_conversation_of_twenty_rounds_goes_on_far_beyond_the_window(server: AntiphonServer) -> None:
    """Usage drops where a pass was made, no round fails, and the planted path is in the window at the end."""

    async def talk() -> tuple[list[dict[str, Any]], str]:
        limits = TransportLimits(idle_timeout_s=ANSWER_S)
        client = ResponsesClient(NetworkTransport(server.url.removesuffix("/v1"), limits))
        try:
            made: list[dict[str, Any]] = []
            for number in range(ROUNDS):
                body: dict[str, Any] = {
                    "model": DEFAULT_MODEL,
                    "input": make_round(number),
                    "temperature": 0,
                    "max_output_tokens": 16,
                }
                if made:
                    body["previous_response_id"] = made[-1]["id"]
                made.append((await client.create(body)).body)
            window = await client.request("GET", f"/responses/{made[-1]['id']}/window")
            return made, json.dumps(window.body["messages"])
        finally:
            await client.close()

    made, window = asyncio.run(talk())
    prompts = [response["usage"]["input_tokens"] for response in made]
    passes = [response.get("antiphon", {}).get("compaction", {}).get("passes", []) for response in made]
    told = [[(each["rungs"], each["tokens_before"], each["tokens_after"]) for each in row] for row in passes]
    print("\nprompt tokens", prompts, "\npasses", [(at, row) for at, row in enumerate(told) if row])
    assert all(response["status"] in ("completed", "incomplete") for response in made)
    assert all(tokens < WINDOW_TOKENS for tokens in prompts)
    compacted = [at for at, row in enumerate(passes) if row and "refused" not in row[0]]
    assert compacted
    for at in compacted:
        assert made[at]["output"][0]["type"] == "compaction"
        assert prompts[at] < prompts[at - 1]
        assert prompts[at] <= passes[at][0]["tokens_before"] * 0.9
    assert (
        sum(prompts[at] - prompts[at - 1] for at in range(1, ROUNDS) if at not in compacted) > WINDOW_TOKENS
    )
    assert PLANTED in window
