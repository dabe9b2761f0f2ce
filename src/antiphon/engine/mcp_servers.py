"""One MCP server that a request declares, during one response: its session, its tools, its calls.

It knows no items and no events. Invariants: the session is opened when it is first needed and closed by `close`; the
server's secrets go to the connector and nowhere else.
"""

from typing import Any

from antiphon.engine.mcp_rules import keep_allowed
from antiphon.hosted import McpConnection, McpConnector, McpError, McpResult, McpServer, McpToolFacts
from antiphon.protocol.tools import McpTool

#: Sessions of one response; a declared server beyond them cannot be asked.
MAX_SERVERS = 32


class DeclaredServer:
    """A server, and what is known of its tools."""

    def __init__(self, declared: McpTool, connector: McpConnector) -> None:
        self.declared = declared
        self.label = declared.server_label
        #: Why listed tools cannot be offered, by their names.
        self.faults: dict[str, str] = {}
        #: The allowed tools by their own names, once they are known.
        self.tools: dict[str, McpToolFacts] = {}
        self._connector = connector
        self._connection: McpConnection | None = None

    def learn(self, tools: list[McpToolFacts]) -> None:
        """Take the tools from a listing."""
        self.tools = {tool.name: tool for tool in tools}

    async def list_tools(self) -> list[McpToolFacts]:
        """Ask for the tools, and keep those that are allowed; raises `McpError`."""
        connection = await self._connect()
        listed = await connection.list_tools()
        self.faults = {tool.name: tool.fault for tool in listed if tool.fault}
        usable = [tool for tool in listed if not tool.fault]
        self.learn(keep_allowed(usable, self.declared.allowed_tools))
        return list(self.tools.values())

    async def open(self) -> None:
        """Begin the session where there is none; raises `McpError`. Nothing was called then."""
        await self._connect()

    async def call(self, name: str, arguments: dict[str, Any]) -> McpResult:
        """Call a tool; raises `McpError`. A session that broke is replaced at the next call, never within one."""
        connection = await self._connect()
        try:
            return await connection.call(name, arguments)
        except McpError as error:
            if error.kind == "http_error":
                await self.close()
            raise

    async def close(self) -> None:
        """End the session, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connect(self) -> McpConnection:
        if self._connection is None:
            self._connection = await self._connector.connect(
                McpServer(
                    label=self.label,
                    url=self.declared.server_url or "",
                    authorization=self.declared.authorization,
                    headers=self.declared.headers or {},
                )
            )
        return self._connection
