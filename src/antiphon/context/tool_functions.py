"""How a chat model is told of each kind of tool: as a function with a name, a description and parameters.

It knows one tool at a time and no request. Invariant: the function depends on the tool, and on the namespace
around it, alone; so the prompt's bytes stay the same as long as the tools do.
"""

from typing import Any, Final

import msgspec

from antiphon.context.tool_names import (
    APPLY_PATCH_NAME,
    LOCAL_SHELL_NAME,
    SHELL_NAME,
    TOOL_SEARCH_NAME,
    flatten_name,
)
from antiphon.protocol.tools import (
    CustomTool,
    FunctionTool,
    GrammarFormat,
    NamespaceTool,
    ShellTool,
    ToolSearchTool,
)

#: The one parameter of a custom tool.
INPUT_KEY: Final = "input"

_INPUT_TEXT = f"The argument `{INPUT_KEY}` is the tool's raw input, as one string."
_GRAMMARS: Final = {"lark": "Lark grammar", "regex": "regular expression"}
_MILLISECONDS = {"type": "integer", "description": "Stop after this many milliseconds."}

LOCAL_SHELL_FUNCTION: Final = FunctionTool(
    name=LOCAL_SHELL_NAME,
    description="Run one command on the user's machine and get what it prints.",
    parameters={
        "type": "object",
        "properties": {
            "command": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "description": "The program and its arguments.",
            },
            "working_directory": {"type": "string"},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
            "timeout_ms": _MILLISECONDS,
            "user": {"type": "string", "description": "Run as this user."},
        },
        "required": ["command"],
    },
)
_SHELL_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "commands": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "description": "Shell commands, which run at the same time.",
        },
        "timeout_ms": _MILLISECONDS,
        "max_output_length": {"type": "integer", "description": "Keep this many characters of the output."},
    },
    "required": ["commands"],
}
APPLY_PATCH_FUNCTION: Final = FunctionTool(
    name=APPLY_PATCH_NAME,
    description=(
        "Create, update or delete one file. `diff` has no file headers. To create a file, begin every line of "
        "it with `+`. To update one, give the changed places: `@@` and a line of context (a function's or a "
        "class's head) where a place is hard to find, then its lines, each beginning with a blank (kept), `-` "
        "(removed) or `+` (added), with about three kept lines around the change. To delete a file, give "
        "an empty `diff`."
    ),
    parameters={
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": {"type": "string"},
            "diff": {"type": "string"},
        },
        "required": ["type", "path", "diff"],
    },
)
_SEARCH_DESCRIPTION = "Find more tools by what they do. The tools that are found can be called from then on."
_SEARCH_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What the tool should do."},
        "limit": {"type": "integer", "description": "The most tools to find."},
    },
    "required": ["query"],
}


def tell_function(tool: FunctionTool, namespace: NamespaceTool | None = None) -> FunctionTool:
    """A function as a chat model is told of it: its flat name, and what else it should know of it."""
    told = [tool.description, _tell_namespace(namespace)]
    if tool.output_schema is not None:
        told.append(f"It returns JSON by this schema: {_encode(tool.output_schema)}")
    return FunctionTool(
        name=flatten_name(namespace.name if namespace else None, tool.name),
        description=_join(told),
        parameters=tool.parameters,
        strict=tool.strict,
    )


def tell_custom(tool: CustomTool, namespace: NamespaceTool | None = None) -> FunctionTool:
    """A custom tool as a function with one string; a grammar is described, for no chat server enforces one."""
    told = [tool.description, _tell_namespace(namespace), _INPUT_TEXT]
    if isinstance(tool.format, GrammarFormat):
        told.append(f"It must match this {_GRAMMARS[tool.format.syntax]}:\n{tool.format.definition}")
    return FunctionTool(
        name=flatten_name(namespace.name if namespace else None, tool.name),
        description=_join(told),
        parameters={
            "type": "object",
            "properties": {INPUT_KEY: {"type": "string"}},
            "required": [INPUT_KEY],
            "additionalProperties": False,
        },
    )


def tell_search(tool: ToolSearchTool) -> FunctionTool:
    """The client's search for tools as a function."""
    return FunctionTool(
        name=TOOL_SEARCH_NAME,
        description=tool.description or _SEARCH_DESCRIPTION,
        parameters=tool.parameters or _SEARCH_PARAMETERS,
    )


def tell_shell(tool: ShellTool) -> FunctionTool:
    """The client's shell as a function; the skills that the client has there are named."""
    told: list[str | None] = ["Run shell commands on the user's machine and get what they print."]
    skills = (tool.environment or {}).get("skills")
    if isinstance(skills, list) and skills:
        told.append("Skills that lie there (read a skill's SKILL.md before you use it):")
        told[-1] = "\n".join([str(told[-1]), *map(_tell_skill, skills)])
    return FunctionTool(name=SHELL_NAME, description=_join(told), parameters=_SHELL_PARAMETERS)


def _tell_skill(skill: Any) -> str:
    if not isinstance(skill, dict):
        return f"- {skill}"
    return f"- {skill.get('name')} ({skill.get('path')}): {skill.get('description')}"


def _tell_namespace(namespace: NamespaceTool | None) -> str | None:
    if namespace is None:
        return None
    return f"Part of {namespace.name}: {namespace.description}" if namespace.description else None


def _join(told: list[str | None]) -> str | None:
    return "\n\n".join(text for text in told if text) or None


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
