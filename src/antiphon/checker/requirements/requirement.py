"""The shape of a requirement: a promise with an id, a source and a probe."""

from collections.abc import Awaitable, Callable

import msgspec

from antiphon.checker.subject import Subject
from antiphon.checker.verdicts import Outcome

Probe = Callable[[Subject], Awaitable[Outcome]]


class Requirement(msgspec.Struct, frozen=True):
    """One promise of a Responses server: where it is made, in one sentence, and the probe that tries it.

    `covers` names the subjects of the API's surface that it is about.
    """

    id: str
    area: str
    source: str
    sentence: str
    probe: Probe
    covers: tuple[str, ...] = ()
