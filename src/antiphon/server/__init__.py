"""The HTTP edge: routes, keys, bodies, server-sent events, errors to statuses. It knows no backend."""

from antiphon.server.app import Application
from antiphon.server.keys import Key, Keyring
from antiphon.server.settings import ServerLimits

__all__ = ["Application", "Key", "Keyring", "ServerLimits"]
