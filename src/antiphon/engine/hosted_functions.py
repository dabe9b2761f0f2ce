"""How a chat model is told of the tools that this server runs: as functions.

It knows one tool at a time. Invariant: the function depends on the declaration, and on what an MCP server lists,
alone; so the prompt's bytes stay the same as long as these do.
"""

from typing import TypeAlias

from antiphon.context.tool_names import WEB_SEARCH_NAME
from antiphon.hosted import McpToolFacts
from antiphon.protocol.tools import (
    FunctionTool,
    McpTool,
    UserLocation,
    WebSearchPreviewTool,
    WebSearchTool,
)

WebSearch: TypeAlias = WebSearchTool | WebSearchPreviewTool


def tell_web_search(tool: WebSearch) -> FunctionTool:
    """How a chat model is told of the web search."""
    told = (
        "Search the web. Gives titles, addresses and excerpts of pages. When you use what a page says, cite it as a "
        "Markdown link to its address."
    )
    place = _describe_place(tool.user_location)
    return FunctionTool(
        name=WEB_SEARCH_NAME,
        description=f"{told} The user is in: {place}." if place else told,
        parameters={
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
            "additionalProperties": False,
        },
    )


def _describe_place(location: UserLocation | None) -> str:
    if location is None:
        return ""
    parts = [location.city, location.region, location.country]
    zone = f"time zone {location.timezone}" if location.timezone else None
    return ", ".join(part for part in (*parts, zone) if part)


def tell_mcp_tool(declared: McpTool, facts: McpToolFacts, name: str) -> FunctionTool:
    """How a chat model is told of a tool of an MCP server."""
    about = declared.server_description
    told = [facts.description, f"Part of {declared.server_label}: {about}" if about else None]
    return FunctionTool(
        name=name,
        description="\n\n".join(text for text in told if text) or None,
        parameters=facts.input_schema,
    )
