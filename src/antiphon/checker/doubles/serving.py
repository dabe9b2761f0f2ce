"""All doubles by name, and one of them over a real socket."""

from antiphon.checker.doubles.faults import STATE_DOUBLES
from antiphon.checker.doubles.honest import HonestDouble
from antiphon.checker.doubles.wire_faults import WIRE_DOUBLES

DOUBLES: dict[str, type[HonestDouble]] = STATE_DOUBLES | WIRE_DOUBLES


def serve_double(name: str, port: int) -> None:
    """Serves the double of that name on the loopback interface until it is stopped."""
    import uvicorn

    uvicorn.run(DOUBLES[name](), host="127.0.0.1", port=port, log_level="warning")
