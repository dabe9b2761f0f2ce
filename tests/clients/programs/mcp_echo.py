"""An MCP server over standard input and output with one tool, `say`, which writes down what it said."""

import json
import sys
from pathlib import Path

SAY = {
    "name": "say",
    "description": "Says it.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def answer(method, params):
    """The result of a request."""
    if method == "initialize":
        version = params["protocolVersion"]
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [SAY]}
    if method == "tools/call":
        text = params["arguments"]["text"]
        with Path(sys.argv[1]).open("a") as said:
            said.write(f"{text}\n")
        return {"content": [{"type": "text", "text": f"echo: {text}"}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
