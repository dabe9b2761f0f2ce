"""All doubles by name, and one of them over a real socket."""

from antiphon.checker.doubles.endpoint_faults import ENDPOINT_DOUBLES
from antiphon.checker.doubles.families import FAMILIES, FAMILY_DOUBLES
from antiphon.checker.doubles.faults import STATE_DOUBLES
from antiphon.checker.doubles.honest import HonestDouble
from antiphon.checker.doubles.socket_faults import SOCKET_DOUBLES
from antiphon.checker.doubles.wire_faults import WIRE_DOUBLES

#: The doubles that were made one by one.
SINGLE_DOUBLES: dict[str, type[HonestDouble]] = (
    STATE_DOUBLES | WIRE_DOUBLES | ENDPOINT_DOUBLES | SOCKET_DOUBLES
)
DOUBLES: dict[str, type[HonestDouble]] = SINGLE_DOUBLES | FAMILY_DOUBLES


def list_double_names() -> list[str]:
    """The names of the doubles, one line for each family."""
    return [*SINGLE_DOUBLES, *(f"{prefix}NAME" for prefix in FAMILIES)]


def serve_double(name: str, port: int) -> None:
    """Serves the double of that name on the loopback interface until it is stopped."""
    import uvicorn

    uvicorn.run(DOUBLES[name](), host="127.0.0.1", port=port, log_level="warning", ws="websockets-sansio")
