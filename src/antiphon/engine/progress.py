"""What the source of a response's events may know of the response that is being made.

Invariant: whoever asks the model again ends the step before, so that items close and tokens are counted.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from antiphon.backends import BackendUsage


class Progress(Protocol):
    """The narrow view of an assembler."""

    @property
    def output(self) -> Sequence[bytes]:
        """The items that are done, as they are stored."""
        ...

    @property
    def outcome(self) -> Any:
        """None while the response goes on."""
        ...

    def end_step(self, usage: BackendUsage | None, *, answered: bool, asks_again: bool = False) -> None:
        """A generation is over and another one follows in the same response.

        `answered`: the response may end with what there is. `asks_again`: the next prompt says more than the
        window, so that its count says nothing about the window.
        """
        ...

    def begin_answer(self) -> None:
        """The model is asked for the first time: what came before, of tools run here, is no answer of its own."""
        ...

    def note_drop(self, warning: tuple[str, str]) -> None:
        """A call of the running generation comes to nothing, which this warning says."""
        ...

    def note_cut(self) -> None:
        """A call was cut off and is not shown: what ends now is incomplete, however little there is of it."""
        ...
