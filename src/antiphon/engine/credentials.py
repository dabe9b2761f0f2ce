"""Credentials of MCP servers in what is to be stored: cut from a request, refused inside items.

It knows requests and no store. Invariant: what passed here can be written to a disk without a secret.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import AdditionalTools, Item, ToolSearchOutput
from antiphon.protocol.requests import CreateRequest
from antiphon.protocol.tools import McpTool

#: The keys of an MCP tool that are secret.
SECRET_KEYS = ("authorization", "headers")

_decode_raws = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def cut_secrets(body: bytes, request: CreateRequest) -> tuple[bytes, bool]:
    """The request without the credentials of MCP servers, and whether there were any."""
    if not any(isinstance(tool, McpTool) and (tool.authorization or tool.headers) for tool in request.tools):
        return body, False
    tools: list[Any] = [
        msgspec.structs.replace(tool, authorization=None, headers=None) if isinstance(tool, McpTool) else tool
        for tool in request.tools
    ]
    return msgspec.json.encode({**_decode_raws(body), "tools": msgspec.Raw(msgspec.json.encode(tools))}), True


def refuse_secrets(items: Iterable[Item], where: str) -> None:
    """Raise for an item that is to be kept and brings a tool with credentials: items are kept as they are."""
    for position, item in enumerate(items):
        if not isinstance(item.value, AdditionalTools | ToolSearchOutput):
            continue
        for index, tool in enumerate(item.value.tools):
            for key in SECRET_KEYS:
                if tool.get("type") == "mcp" and tool.get(key):
                    path = f"{where}[{position}].tools[{index}].{key}"
                    raise RequestError(
                        f"Invalid '{path}': this item would be stored, and credentials are never stored. Put the "
                        "tool into 'tools' of each request, or send the request with 'store': false.",
                        param=path,
                        code="invalid_value",
                    )
