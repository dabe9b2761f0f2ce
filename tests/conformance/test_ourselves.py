"""The manifest against our own server in this process: every requirement that we ask of others, we keep."""

import asyncio

from antiphon.checker import CheckOptions, Report, Verdict, run_check
from antiphon.client import AppTransport
from tests.conformance.conftest import OpenApp


async def check_ourselves(open_app: OpenApp) -> Report:
    """The whole manifest over one server."""
    async with open_app() as app:
        transport = AppTransport(app)
        try:
            return await run_check(transport, "scripted", CheckOptions(seed=1, timeout_s=50))
        finally:
            await transport.close()


def test_our_server_keeps_every_requirement(scripted_app: OpenApp) -> None:
    """Ours: the manifest is our conformance suite; an undecided requirement is not a kept one."""
    report = asyncio.run(check_ourselves(scripted_app))
    broken = {item.id: item.explanation for item in report.results if item.verdict is not Verdict.PASS}
    assert broken == {}
    assert report.notes == []
    assert report.exit_status == 0
