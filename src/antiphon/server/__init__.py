"""The HTTP edge: routes, keys, bodies, server-sent events, errors to statuses. It knows no backend."""

from antiphon.server.admission import Admission, AdmissionLimits
from antiphon.server.app import Application
from antiphon.server.keys import Key, KeyLimits, Keyring
from antiphon.server.settings import ServerLimits

__all__ = ["Admission", "AdmissionLimits", "Application", "Key", "KeyLimits", "Keyring", "ServerLimits"]
