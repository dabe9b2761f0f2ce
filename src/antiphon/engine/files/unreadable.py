"""Why a file or an image cannot be shown to the model.

Reasons are clauses without a full stop: they stand in errors, and in prompts in the place of what is missing.
"""

from antiphon.protocol.errors import AntiphonError, OverloadedError, RequestError


class ContentError(RequestError):
    """A content part cannot be shown to the model; `reason` says why without naming its place."""

    def __init__(self, reason: str, *, param: str, code: str) -> None:
        super().__init__(f"Invalid '{param}': {reason}.", param=param, code=code)
        self.reason = reason


class UnreadableFileError(AntiphonError):
    """The file has no text that could be read.

    `passing` faults may be gone at the next try; the others are the file's own.
    """

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


class FilesBusyError(OverloadedError):
    """Too many files are being read just now. Please try again in 5s."""
