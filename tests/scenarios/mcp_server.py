"""An MCP server of the SDK's own making, on loopback: it does what its tools say, and remembers who asked what.

It knows nothing of Antiphon. Invariant: `stop` leaves no thread behind.
"""

import json
import socket
import threading
from typing import Any

import uvicorn

#: Who does not send this is refused.
TOKEN = "token-abcdef-123456"
#: Another secret, in a header of its own.
HEADER_SECRET = "header-secret-987654"
WAIT_S = 20.0
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class McpServerThread:
    """Three tools: `weather` (reads only), `alarm` (fails), `send` (changes things)."""

    def __init__(self) -> None:
        #: What clients asked, in order: "list", or "call" and the name of the tool.
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        self._listener = listener
        self._server = uvicorn.Server(
            uvicorn.Config(self._build(), log_config=None, ws="none", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; a second call does nothing."""
        self._server.should_exit = True
        self._thread.join(timeout=WAIT_S)
        self._listener.close()
        assert not self._thread.is_alive()

    @property
    def calls(self) -> list[str]:
        """The tools that were called, in order."""
        return [name.partition(" ")[2] for name in self.asked if name.startswith("call ")]

    def _build(self) -> Any:
        import mcp_types as types
        from mcp.server.lowlevel import Server
        from starlette.responses import PlainTextResponse

        async def list_tools(*_: Any) -> types.ListToolsResult:
            reads = types.ToolAnnotations(read_only_hint=True)
            return types.ListToolsResult(
                tools=[
                    types.Tool(
                        name="weather", description="The weather.", input_schema=SCHEMA, annotations=reads
                    ),
                    types.Tool(name="alarm", input_schema={"type": "object"}),
                    types.Tool(name="send", input_schema={"type": "object"}),
                ]
            )

        async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
            if params.name == "weather":
                text = f"4 degrees in {(params.arguments or {})['city']}"
                return types.CallToolResult(content=[types.TextContent(text=text)])
            if params.name == "send":
                return types.CallToolResult(content=[types.TextContent(text="Sent.")])
            return types.CallToolResult(content=[types.TextContent(text="It is broken.")], is_error=True)

        server = Server("scenario", on_list_tools=list_tools, on_call_tool=call_tool)
        app = server.streamable_http_app(json_response=True, stateless_http=True)

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                self.headers.append(headers)
                if headers.get("authorization") != f"Bearer {TOKEN}":
                    await PlainTextResponse("no", status_code=401)(scope, receive, send)
                    return
                receive = self._note(receive)
            await app(scope, receive, send)

        return guarded

    def _note(self, receive: Any) -> Any:
        """The messages that clients send; the SDK's server asks its own handlers, too."""
        body = b""

        async def noting() -> Any:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            if body and not message.get("more_body", False):
                sent = json.loads(body)
                body = b""
                if sent.get("method") == "tools/list":
                    self.asked.append("list")
                elif sent.get("method") == "tools/call":
                    self.asked.append(f"call {sent['params']['name']}")
            return message

        return noting
