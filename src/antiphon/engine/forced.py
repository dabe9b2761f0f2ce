"""A forced tool call is enforced, whatever the backend does with `tool_choice`.

Text is withheld until the call starts; a generation without the call is asked for once more; then it
fails. It knows backend events alone.
"""

from collections.abc import AsyncGenerator, Callable

import msgspec

from antiphon.backends import (
    Ask,
    Backend,
    BackendEvent,
    BackendUsage,
    CallDelta,
    Failed,
    Finished,
    Opened,
    RefusalDelta,
    TextDelta,
)
from antiphon.engine.names import fit_name
from antiphon.engine.progress import Progress
from antiphon.protocol.errors import BackendError
from antiphon.protocol.items import make_user_message

#: A model that writes this much instead of the call is stopped.
WITHHELD_CHARACTERS = 20_000
_ATTEMPTS = 2


async def stream_forced(
    backend: Backend,
    ask: Ask,
    warnings: list[tuple[str, str]],
    progress: Progress,
    *,
    is_hidden: Callable[[str], bool] = lambda name: False,
) -> AsyncGenerator[list[BackendEvent], None]:
    """Like `backend.stream`, but it ends with a call of the forced tool or with `Failed`.

    `is_hidden`: whether a call by this name would be dropped, so that it is none.
    """
    opened = False
    for attempt in range(_ATTEMPTS):
        gate = _Gate(ask.forced_tool, frozenset(tool.name for tool in ask.tools), is_hidden)
        stream = backend.stream(ask if attempt == 0 else _ask_again(backend, ask))
        try:
            async for batch in stream:
                passed = [
                    event for event in gate.pass_through(batch) if not (opened and type(event) is Opened)
                ]
                opened = opened or any(type(event) is Opened for event in passed)
                if passed:
                    yield passed
                if gate.closed and not gate.finished:
                    break
        finally:
            await stream.aclose()
        if not gate.closed or progress.outcome is not None:
            return
        if attempt < _ATTEMPTS - 1:
            progress.end_step(gate.usage, answered=False, asks_again=True)
        warnings.append(
            ("tool_call_asked_again", f"The model wrote {gate.told()} instead of the forced call.")
        )
    name = f"the function {ask.forced_tool}" if ask.forced_tool else "any function"
    yield [
        Failed(
            error=BackendError(f"The model was told twice to call {name} and did not.", code="server_error")
        )
    ]


class _Gate:
    """Holds text back until a fitting call starts; closes when it is clear that none will come."""

    def __init__(
        self, forced_tool: str | None, offered: frozenset[str], is_hidden: Callable[[str], bool]
    ) -> None:
        self._forced_tool = forced_tool
        self._is_hidden = is_hidden
        self._offered = offered
        self._held: list[BackendEvent] = []
        self._held_characters = 0
        self._open = False
        self.closed = False
        #: The generation ended by itself, so its stream is read to its end and the connection kept.
        self.finished = False
        self._wrong_name = ""
        #: What the withheld generation cost, where that was told.
        self.usage: BackendUsage | None = None

    def told(self) -> str:
        """What came instead, in words, with what it cost where that is known."""
        told = (
            f"a call of {self._wrong_name}"
            if self._wrong_name
            else f"{self._held_characters} characters of text"
        )
        if self.usage is None:
            return told
        return f"{told} ({self.usage.input_tokens} tokens in, {self.usage.output_tokens} out)"

    def pass_through(self, batch: list[BackendEvent]) -> list[BackendEvent]:
        passed: list[BackendEvent] = []
        for event in batch:
            if self.closed:
                break
            if self._open:
                passed.append(event)
            elif type(event) is Failed:
                passed += [*self._held, event]
            elif type(event) in (TextDelta, RefusalDelta) or (type(event) is CallDelta and not event.name):
                self._hold(event)
            elif type(event) is CallDelta:
                self._judge_call(event, passed)
            elif type(event) is Finished:
                # Cut off before the call: that is the caller's limit, not disobedience.
                if event.reason == "stop":
                    self.closed = self.finished = True
                    self.usage = event.usage
                else:
                    passed += [*self._held, event]
            else:
                passed.append(event)
        return passed

    def _hold(self, event: BackendEvent) -> None:
        self._held.append(event)
        if isinstance(event, TextDelta | RefusalDelta):
            self._held_characters += len(event.text)
            self.closed = self._held_characters > WITHHELD_CHARACTERS

    def _judge_call(self, event: CallDelta, passed: list[BackendEvent]) -> None:
        name = fit_name(event.name, self._offered)
        if self._forced_tool is None:
            is_wrong = name not in self._offered and self._is_hidden(event.name)
        else:
            is_wrong = name != self._forced_tool
        if is_wrong:
            self._wrong_name = event.name
            self.closed = True
            return
        self._open = True
        passed += [*self._held, event]
        self._held = []


def _ask_again(backend: Backend, ask: Ask) -> Ask:
    wanted = f"the function {ask.forced_tool}" if ask.forced_tool else "one of the functions"
    said = make_user_message(f"Answer with a call of {wanted} now, and with nothing else.")
    segment = backend.transcribe([said], ask.profile, at_start=False)
    return msgspec.structs.replace(ask, transcript=[*ask.transcript, segment.body])
