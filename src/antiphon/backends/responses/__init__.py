"""The Responses dialect: servers that speak Responses themselves; their state is not used, ours is."""

from antiphon.backends.responses.backend import ResponsesBackend

__all__ = ["ResponsesBackend"]
