"""Talk to any Responses server, over the network or to an application in this process.

Importing it is cheap: the HTTP library is loaded by the first request over the network.
"""

from antiphon.client.addresses import AddressError, resolve_responses_url
from antiphon.client.app_transport import AppTransport
from antiphon.client.errors import (
    ApplicationFailedError,
    ClientError,
    ConnectionFailedError,
    SocketClosedError,
    UnreachableError,
    UpgradeRefusedError,
)
from antiphon.client.network_transport import NetworkTransport
from antiphon.client.responses import EventStream, ResponseReply, ResponsesClient
from antiphon.client.transport import Reply, Socket, Transport, TransportLimits

__all__ = [
    "AddressError",
    "AppTransport",
    "ApplicationFailedError",
    "ClientError",
    "ConnectionFailedError",
    "EventStream",
    "NetworkTransport",
    "Reply",
    "ResponseReply",
    "ResponsesClient",
    "Socket",
    "SocketClosedError",
    "Transport",
    "TransportLimits",
    "UnreachableError",
    "UpgradeRefusedError",
    "resolve_responses_url",
]
