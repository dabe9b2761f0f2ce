"""How a probe takes a refusal, and how it looks into an answer: shared by the families of probes.

It knows no request. Invariant: a refusal counts as honest only where it says what it is about.
"""

from collections.abc import Iterable
from typing import Any

from antiphon.checker.answers import Refusal
from antiphon.checker.subject import Fetched
from antiphon.checker.verdicts import Outcome, failed, passed, unasked, undecided

#: What a server answers for a route that it does not have.
_NO_ROUTE = (404, 405, 501)


def judge_refusal(refusal: Refusal, *names: str) -> Outcome:
    """Refused is as good as honoured, where the refusal says what it is about."""
    if not refusal.is_clients_fault:
        return undecided(f"the request failed without being refused ({refusal})")
    if is_named(refusal, *names):
        return passed(f"refused by name ({refusal})", http_status=refusal.status, code=refusal.code)
    return failed(f"refused without saying that it is about {names[0]!r} ({refusal})")


def is_named(refusal: Refusal, *names: str) -> bool:
    """Whether the refusal speaks of one of these."""
    told = f"{refusal.param} {refusal.message}"
    return any(name in told for name in names)


def expect_refusal(
    fetched: Fetched, what: str, *, status: int = 400, code: str | None = None, names: Iterable[str] = ()
) -> Outcome:
    """Refused with this status, this code where one is given, and one of these names where there are some."""
    refusal = fetched.refusal
    if refusal is None:
        return failed(f"{what} is answered (status {fetched.status})", http_status=fetched.status)
    evidence = {"http_status": refusal.status, "code": refusal.code, "param": refusal.param}
    if refusal.status >= 500 or refusal.status == 429:
        return undecided(f"{what}: the server is not able ({refusal})", **evidence)
    names = tuple(names)
    right = refusal.status == status and (code is None or refusal.code == code)
    if right and (not names or is_named(refusal, *names)):
        return passed(f"{what} is refused ({refusal})", **evidence)
    wanted = f"{status}{f' {code}' if code else ''}{f' about {names[0]!r}' if names else ''}"
    return failed(f"{what} is refused, but not by {wanted} ({refusal})", **evidence)


def find_unserved(fetched: Fetched, what: str) -> Outcome | None:
    """Undecided where the server has no such route; that is no fault, and nothing more can be asked."""
    if fetched.status in _NO_ROUTE:
        return unasked(f"a server that has {what}", f"the server has no {what} ({fetched.refusal})")
    refusal = fetched.refusal
    if refusal is not None and not refusal.is_clients_fault:
        return undecided(f"{what}: the request failed without being refused ({refusal})")
    return None


def dig(value: Any, path: str) -> Any:
    """The value at a path of names and places: `tools.0.name`; None where there is none."""
    for step in path.split("."):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def find_warning(body: Any, *names: str) -> str | None:
    """What the response says was left out or changed, where it speaks of one of these."""
    warnings = dig(body, "antiphon.warnings")
    for warning in warnings if isinstance(warnings, list) else ():
        told = f"{dig(warning, 'code')}: {dig(warning, 'message')}"
        if any(name in told for name in names):
            return told
    return None


def holds(found: Any, wanted: Any) -> bool:
    """Whether everything that is wanted stands in what was found; more may stand there."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(holds(found.get(key), part) for key, part in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(holds(one, other) for one, other in zip(found, wanted, strict=True))
        )
    return bool(found == wanted) and type(found) is type(wanted)


def read_list(value: Any) -> list[Any]:
    """The value where it is a list; empty where it is none."""
    return value if isinstance(value, list) else []


def read_objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [part for part in read_list(value) if isinstance(part, dict)]


def tell(value: Any) -> str:
    """A value in a sentence."""
    return "nothing of it" if value is None else repr(value)[:80]
