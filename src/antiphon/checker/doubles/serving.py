"""A double over a real socket. It knows the doubles by name alone."""

from antiphon.checker.doubles.faults import DOUBLES


def serve_double(name: str, port: int) -> None:
    """Serves the double of that name on the loopback interface until it is stopped."""
    import uvicorn

    uvicorn.run(DOUBLES[name](), host="127.0.0.1", port=port, log_level="warning")
