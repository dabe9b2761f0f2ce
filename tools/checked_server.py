"""Our own server as the manifest is tried on it: in this process, with a scripted model, search and MCP server.

It is what the conformance tests and the compatibility page see. Invariant: it opens no connection, and what it
answers depends on the code and on the script beside this file alone.
"""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from antiphon.bootstrap import build_application, build_backends, build_engine
from antiphon.config import load_config
from antiphon.hosted import McpResult, McpToolFacts, SearchHit
from antiphon.hosted.scripted import ScriptedMcpConnector, ScriptedMcpServer, ScriptedSearch
from antiphon.server import Application

MODEL = "scripted"
#: The same model under another name, to go on with.
SECOND_MODEL = "scripted-again"
#: The keys of two tenants; no secrets.
KEYS = {"ada": "key-of-ada-for-tests", "ben": "key-of-ben-for-tests"}
#: Where the scripted MCP server is said to be.
MCP_URL = "http://mcp.example/mcp"

_SCRIPT = Path(__file__).with_suffix(".toml")
_TEXT_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


@asynccontextmanager
async def open_checked_server(folder: Path) -> AsyncIterator[Application]:
    """The server over a data folder; opened again there, it has the data of the time before."""
    flags = {
        "server": {"data": str(folder / "data")},
        "endpoints": {"scripted": {"dialect": "scripted", "script": str(_SCRIPT)}},
        "models": {MODEL: {"endpoint": "scripted"}, SECOND_MODEL: {"endpoint": "scripted", "model": MODEL}},
        "keys": {name: {"sha256": hashlib.sha256(key.encode()).hexdigest()} for name, key in KEYS.items()},
    }
    config = load_config(flags, environ={}, cwd=folder)
    engine = build_engine(config, build_backends(config))
    engine.services.search = ScriptedSearch(
        {"tower": [SearchHit("https://tower.example/height", "The tower", "The tower is 300 m high.")]}
    )
    engine.services.mcp = ScriptedMcpConnector(
        {
            MCP_URL: ScriptedMcpServer(
                tools=[McpToolFacts(name, _TEXT_SCHEMA, f"Tool {name}.") for name in ("say", "fail")],
                answers={"say": McpResult("said"), "fail": McpResult("It broke.", is_error=True)},
            )
        }
    )
    try:
        await engine.start()
        yield build_application(config, engine)
    finally:
        await engine.close()
