"""The routes that tell of the server itself: up, ready, and what it serves."""

from collections.abc import Callable

import msgspec

from antiphon.engine import Engine
from antiphon.server.route import Call, RouteSpec


class Status(msgspec.Struct):
    """Whether the server is up, or ready."""

    status: str


class StatusRoutes:
    """Health, readiness, the OpenAPI document."""

    def __init__(self, engine: Engine, get_openapi: Callable[[], bytes]) -> None:
        self._engine = engine
        self._read_openapi = get_openapi

    def list_specs(self) -> tuple[RouteSpec, ...]:
        """The routes."""
        return (
            RouteSpec(
                method="GET",
                path="/openapi.json",
                name="getOpenApi",
                summary="This document.",
                handler=self._get_openapi,
                ours=True,
            ),
            RouteSpec(
                method="GET",
                path="/health",
                name="getHealth",
                summary="Whether the server is up.",
                handler=self._get_health,
                answer=Status,
                ours=True,
                # What clients ask of a probe before any key is at hand.
                open=True,
            ),
            RouteSpec(
                method="GET",
                path="/ready",
                name="getReady",
                summary="Whether a response could be stored now.",
                handler=self._get_ready,
                answer=Status,
                errors=("500",),
                ours=True,
                open=True,
            ),
        )

    async def _get_openapi(self, call: Call) -> bytes:
        return self._read_openapi()

    async def _get_health(self, call: Call) -> bytes:
        return b'{"status":"ok"}'

    async def _get_ready(self, call: Call) -> bytes:
        await self._engine.check()
        return b'{"status":"ready"}'
