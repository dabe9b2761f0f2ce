"""The way in which a probe says that it cannot decide."""


class UndecidedError(Exception):
    """The probe cannot decide; the text says why, `needs` what is not there, where that is no fault."""

    def __init__(self, reason: str, needs: str | None = None) -> None:
        super().__init__(reason)
        self.needs = needs
