"""Credentials of MCP servers in what is to be stored: cut from a request, refused inside items.

The query of a server's URL counts as one, since servers take tokens there.

It knows requests and no store. Invariant: what passed here can be written to a disk without a secret.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import AdditionalTools, Item, ToolSearchOutput
from antiphon.protocol.mcp_addresses import cut_query, has_secrets
from antiphon.protocol.requests import CreateRequest
from antiphon.protocol.tools import McpTool

_decode_raws = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def cut_secrets(body: bytes, request: CreateRequest) -> tuple[bytes, bool]:
    """The request without the credentials of MCP servers, and whether there were any."""
    servers = [tool for tool in request.tools if isinstance(tool, McpTool)]
    if not any(has_secrets(msgspec.to_builtins(tool)) for tool in servers):
        return body, False
    tools: list[Any] = [_cut(tool) if isinstance(tool, McpTool) else tool for tool in request.tools]
    return msgspec.json.encode({**_decode_raws(body), "tools": msgspec.Raw(msgspec.json.encode(tools))}), True


def _cut(tool: McpTool) -> McpTool:
    url = cut_query(tool.server_url) if tool.server_url else tool.server_url
    return msgspec.structs.replace(tool, authorization=None, headers=None, server_url=url)


def refuse_secrets(items: Iterable[Item], where: str) -> None:
    """Raise for an item that is to be kept and brings a tool with credentials: items are kept as they are."""
    for position, item in enumerate(items):
        if not isinstance(item.value, AdditionalTools | ToolSearchOutput):
            continue
        for index, tool in enumerate(item.value.tools):
            key = has_secrets(tool) if tool.get("type") == "mcp" else None
            if key is not None:
                path = f"{where}[{position}].tools[{index}].{key}"
                raise RequestError(
                    f"Invalid '{path}': this item would be stored, and credentials are never stored. Put the "
                    "tool into 'tools' of each request, or send the request with 'store': false.",
                    param=path,
                    code="invalid_value",
                )
