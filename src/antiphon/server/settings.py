"""Limits of the HTTP edge, each with its unit."""

import msgspec


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much and how long the edge takes from, and waits for, one client."""

    body_bytes: int = 64 << 20
    body_decompressed_bytes: int = 128 << 20
    max_input_items: int = 100_000
    #: A body that is not whole after this long is given up.
    body_timeout_s: float = 60.0
    #: Silence in a stream after which it repeats `response.in_progress`.
    keep_alive_s: float = 15.0
    #: How long a stream waits for the model server's status line before it begins.
    status_wait_s: float = 2.0
    #: A client that reads nothing for this long is treated as gone.
    write_timeout_s: float = 300.0
    #: Whether `/v1/responses` can be used over WebSocket.
    websocket: bool = True
    #: The most WebSocket connections at once.
    websocket_connections: int = 1_000
    #: A connection that is older takes no further request.
    websocket_s: float = 3_600.0
    #: The most named lanes (`stream_id`) of one connection.
    websocket_lanes: int = 32
    #: The most responses of one connection that run at once.
    websocket_running: int = 16
    #: The most requests of one connection that wait.
    websocket_waiting: int = 64
