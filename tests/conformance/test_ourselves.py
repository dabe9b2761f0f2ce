"""The manifest against our own server in this process: every requirement that we ask of others, we keep."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from tools.checked_server import KEYS, MCP_URL

from antiphon.checker import CheckOptions, Report, Verdict, run_check
from antiphon.client import AppTransport
from antiphon.client.app_run import AsgiApp
from tests.conformance.conftest import OpenApp
from tests.conformance.verdicts import UNSTEERED

#: Answers of a whole run with a chain of so many rounds; a probe that asks for more is noticed here.
ROUNDS, ANSWERS_AT_MOST = 60, 520
#: Raw reasoning is sent as summaries, no compaction takes long, and nothing can be steered, so nothing brings these.
NEVER_SENT = {
    "events.response.reasoning_text.delta",
    "events.response.reasoning_text.done",
    "events.response.compaction.compacting",
    *UNSTEERED,
}


class Restartable:
    """The server as one application that can be closed and opened again on the same data."""

    def __init__(self, open_app: OpenApp) -> None:
        self._open_app = open_app
        self._stack = AsyncExitStack()
        self._app: AsgiApp | None = None
        self.restarts = 0

    async def start(self) -> None:
        self._app = await self._stack.enter_async_context(self._open_app())

    async def close(self) -> None:
        await self._stack.aclose()

    async def restart(self) -> None:
        await self.close()
        self.restarts += 1
        await self.start()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._app is not None
        await self._app(scope, receive, send)


async def check_ourselves(server: Restartable) -> Report:
    """The whole manifest over one server, with a second key and a restart."""
    await server.start()
    transport = AppTransport(server)
    options = CheckOptions(
        seed=1,
        timeout_s=50,
        rounds=ROUNDS,
        api_key=KEYS["ada"],
        second_key=KEYS["ben"],
        restart=server.restart,
        recall_words=3,
        mcp_url=MCP_URL,
    )
    try:
        return await run_check(transport, "scripted", options)
    finally:
        await transport.close()
        await server.close()


def test_our_server_keeps_every_requirement(scripted_app: OpenApp) -> None:
    """Ours: the manifest is our conformance suite; an undecided requirement is not a kept one."""
    server = Restartable(scripted_app)
    report = asyncio.run(check_ourselves(server))
    broken = {item.id: item.explanation for item in report.results if item.verdict is not Verdict.PASS}
    assert set(broken) == NEVER_SENT, broken
    assert report.notes == []
    assert report.exit_status == 0
    assert server.restarts == 1
    assert report.answers <= ANSWERS_AT_MOST
    assert report.recall is not None
    assert (report.recall.by_id, report.recall.no_history, report.recall.counted) == (3, 0, 3)
