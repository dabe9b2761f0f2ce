"""Grammars of custom tools: definitions are checked when a request comes, inputs when a model wrote them.

The work is done by child processes with a time limit, for a grammar may take for ever. It knows no requests
and no model. Invariants: no answer takes longer than the limits below, whatever the grammar and the text are; and
tenants take turns, so that none waits for all that another one asks.
"""

import asyncio
import hashlib
import logging
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from antiphon.engine.turns import Turns
from antiphon.protocol.errors import RETRY_AFTER_S, OverloadedError, RequestError
from antiphon.protocol.tools import CustomTool, GrammarFormat, NamespaceTool, Tool

_log = logging.getLogger("antiphon.engine")

#: One check, in seconds.
CHECK_TIMEOUT_S: Final = 5.0
#: The start of the child process.
START_TIMEOUT_S: Final = 20.0
#: How long a check waits for those before it.
QUEUE_TIMEOUT_S: Final = 10.0
#: How long an ended process is waited for.
END_TIMEOUT_S: Final = 5.0
#: The longest definition that is accepted, and the longest text that is checked.
DEFINITION_CHARACTERS: Final = 100_000
TEXT_CHARACTERS: Final = 200_000
#: Verdicts that are remembered, of less than a kilobyte each: clients send the same grammars with each request.
VERDICTS_KEPT: Final = 1_000
#: Child processes; one tenant has one at a time.
WORKERS: Final = 2
#: Checks of one tenant that wait.
WAITING_LIMIT: Final = 16

_WORKER: Final = Path(__file__).with_name("grammar_worker.py")


class Verdict(msgspec.Struct, frozen=True):
    """What was found: at most one of these says something.

    `invalid`: the grammar itself is wrong. `fault`: the text does not follow it. `unchecked`: nobody knows.
    """

    invalid: str = ""
    fault: str = ""
    unchecked: str = ""


class _NotInTimeError(Exception):
    """No verdict came; the text says why."""


class GrammarChecker:
    """What one tenant asks of the child processes, which all tenants share (`of_tenant`)."""

    def __init__(
        self, *, timeout_s: float = CHECK_TIMEOUT_S, tenant: str = "", shop: "_Workshop | None" = None
    ) -> None:
        self._tenant = tenant
        self._shop = shop or _Workshop(timeout_s)

    def of_tenant(self, tenant: str) -> "GrammarChecker":
        """The checker of one tenant."""
        return GrammarChecker(tenant=tenant, shop=self._shop)

    async def check_tools(self, tools: Sequence[Tool], where: str = "tools") -> None:
        """Raise `RequestError` for the first custom tool whose grammar is none."""
        for grammar, path in _find_grammars(tools, where):
            await self.check_grammar(grammar, path)

    async def check_grammar(self, grammar: GrammarFormat, where: str) -> None:
        """Raise `RequestError` when a grammar cannot be used; `where` is its tool's place (`tools[0]`)."""
        param = f"{where}.format.definition"
        if len(grammar.definition) > DEFINITION_CHARACTERS:
            text = f"Invalid '{param}': the grammar is longer than {DEFINITION_CHARACTERS} characters. Shorten it."
            raise RequestError(text, param=param, code="invalid_value")
        verdict = await self._judge(grammar)
        if verdict.invalid:
            raise RequestError(f"Invalid '{param}': {verdict.invalid}.", param=param, code="invalid_value")

    async def check_text(self, grammar: GrammarFormat, text: str) -> Verdict:
        """Whether a text follows a grammar."""
        if len(text) > TEXT_CHARACTERS:
            return Verdict(unchecked=f"it is longer than {TEXT_CHARACTERS} characters")
        try:
            answer = await self._ask(grammar, text)
        except _NotInTimeError as reason:
            return Verdict(unchecked=str(reason))
        return Verdict(fault=answer.fault, unchecked=answer.unchecked or answer.invalid)

    async def close(self) -> None:
        """End the child processes, those of all tenants."""
        await self._shop.close()

    async def _judge(self, grammar: GrammarFormat) -> Verdict:
        key = _digest(self._tenant, grammar)
        verdict = self._shop.get_verdict(key)
        if verdict is None:
            try:
                verdict = await self._ask(grammar, None)
            except _NotInTimeError as reason:
                # Others may be to blame: the text is held against the grammar later, or said not to be.
                _log.warning("a grammar was not checked: %s", reason)
                return Verdict(unchecked=str(reason))
            self._shop.keep_verdict(key, verdict)
        return verdict

    async def _ask(self, grammar: GrammarFormat, text: str | None) -> Verdict:
        """One question to a child process, when its turn has come."""
        try:
            return await self._shop.ask(self._tenant, grammar, text)
        except OverloadedError:
            if text is None:
                raise OverloadedError(
                    f"Over {WAITING_LIMIT} checks of grammars are waiting already. Send fewer new grammars at once. "
                    f"Please try again in {RETRY_AFTER_S}s."
                ) from None
            # A response that runs is not ended for it.
            raise _NotInTimeError("too many checks were waiting already") from None


class _Workshop:
    """The child processes, the turns of tenants at them, and what they found of grammars."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._turns = Turns(WORKERS, waiting_per_tenant=WAITING_LIMIT)
        self._workers = [_Worker(timeout_s) for _ in range(WORKERS)]
        #: The one that was used last comes last, and is used first: mostly one process is enough.
        self._idle = list(self._workers)
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()

    async def ask(self, tenant: str, grammar: GrammarFormat, text: str | None) -> Verdict:
        """The answer of a child process; raises `OverloadedError` or `_NotInTimeError`."""
        try:
            async with self._turns.take(tenant, timeout_s=QUEUE_TIMEOUT_S):
                worker = self._idle.pop()
                try:
                    return await worker.ask(grammar, text)
                finally:
                    self._idle.append(worker)
        except TimeoutError:
            raise _NotInTimeError("other grammars were being checked") from None

    def get_verdict(self, key: bytes) -> Verdict | None:
        """What was found of a grammar before."""
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
        return self._verdicts.get(key)

    def keep_verdict(self, key: bytes, verdict: Verdict) -> None:
        """Remember it instead of the one that was not asked for for longest."""
        self._verdicts[key] = verdict
        while len(self._verdicts) > VERDICTS_KEPT:
            self._verdicts.popitem(last=False)

    async def close(self) -> None:
        """End the child processes."""
        for worker in self._workers:
            await worker.close()


def _digest(tenant: str, grammar: GrammarFormat) -> bytes:
    """The name of a grammar: as short as a hash, and every tenant's own."""
    parts = (tenant, grammar.syntax, grammar.definition)
    return hashlib.sha256(msgspec.json.encode(parts)).digest()


class _Worker:
    """One child process, started when it is first needed, and again whenever it had to be ended."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._process: asyncio.subprocess.Process | None = None

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    async def ask(self, grammar: GrammarFormat, text: str | None) -> Verdict:
        """One question; nobody else may ask meanwhile."""
        process = await self._get_process()
        question: dict[str, Any] = {
            "syntax": grammar.syntax,
            "definition": grammar.definition,
            "text": text,
            "seconds": self._timeout_s,
        }
        answer = b""
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await _exchange(process, msgspec.json.encode(question) + b"\n")
        except TimeoutError:
            if text is None:
                return Verdict(invalid=f"it could not be read within {self._timeout_s:g} s. Make it simpler")
            raise _NotInTimeError(f"that took longer than {self._timeout_s:g} s") from None
        finally:
            # Without a whole answer the next question would get this one's.
            if not answer:
                self._process = None
                await _end(process)
        if not answer:
            raise _NotInTimeError("the process that checks grammars ended")
        return msgspec.json.decode(answer, type=Verdict)

    async def _get_process(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                str(_WORKER),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                # Ctrl-C in a terminal is for the server alone, which ends this process itself.
                start_new_session=True,
            )
        except OSError as error:
            raise _NotInTimeError(f"the process that checks grammars cannot be started: {error}") from error
        ready = b""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                ready = await _exchange(process, b"")
        except TimeoutError:
            raise _NotInTimeError("the process that checks grammars did not start in time") from None
        finally:
            if not ready:
                await _end(process)
        if not ready:
            raise _NotInTimeError("the process that checks grammars cannot be started")
        self._process = process
        return process


async def _exchange(process: asyncio.subprocess.Process, line: bytes) -> bytes:
    """Write a line, read a line; b"" when the process is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line)
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        return b""
    return await process.stdout.readline()


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    # One that closed its output is ending by itself; to signal it now could take its status from asyncio.
    if not process.stdout.at_eof():
        with suppress(ProcessLookupError):
            process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(END_TIMEOUT_S):
            # Its pipes are closed with it.
            await process.communicate()


def _find_grammars(tools: Sequence[Tool], where: str) -> Iterator[tuple[GrammarFormat, str]]:
    for index, tool in enumerate(tools):
        path = f"{where}[{index}]"
        if isinstance(tool, NamespaceTool):
            yield from _find_grammars(tool.tools, f"{path}.tools")
        elif isinstance(tool, CustomTool) and isinstance(tool.format, GrammarFormat):
            yield tool.format, path
