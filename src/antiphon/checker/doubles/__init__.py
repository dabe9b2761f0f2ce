"""Doubles: servers that misbehave in one named way each, and an honest one, to try a checker on.

`python -m antiphon.checker.doubles NAME PORT` serves one. They know no probe; the honest one passes them all.
"""

from antiphon.checker.doubles.faults import DOUBLES
from antiphon.checker.doubles.honest import HonestDouble

__all__ = ["DOUBLES", "HonestDouble", "serve_double"]


def serve_double(name: str, port: int) -> None:
    """Serves the double of that name on the loopback interface until it is stopped."""
    import uvicorn

    uvicorn.run(DOUBLES[name](), host="127.0.0.1", port=port, log_level="warning")
