"""The scripted model: a backend without a model server, for demonstrations and tests.

It answers from what really stands in the window, or plays the answers of a script. It holds no state
between requests. Invariant: the same window, script and settings give the same answer and the same counts.
"""

from antiphon.backends.scripted.backend import ScriptedBackend
from antiphon.backends.scripted.script import (
    Answer,
    Call,
    Rule,
    Script,
    ScriptError,
    load_script,
    parse_script,
)

__all__ = [
    "Answer",
    "Call",
    "Rule",
    "Script",
    "ScriptError",
    "ScriptedBackend",
    "load_script",
    "parse_script",
]
