"""What the model sees: facts about models, the tools that it is offered, and how every call is told.

Pure: no I/O, no clock, no randomness; it reaches a model only through a callable that it is given.
"""

from antiphon.context.lowering import (
    LoweredCall,
    LoweredMessage,
    LoweredOutput,
    lower_call,
    lower_message,
    lower_output,
)
from antiphon.context.profiles import Profile
from antiphon.context.seal import SealError, SealKeys
from antiphon.context.tool_names import WEB_SEARCH_NAME, flatten_name
from antiphon.context.toolbox import (
    OfferedTool,
    Toolbox,
    ToolKind,
    build_toolbox,
    load_stored_tools,
    load_tools,
)

__all__ = [
    "WEB_SEARCH_NAME",
    "LoweredCall",
    "LoweredMessage",
    "LoweredOutput",
    "OfferedTool",
    "Profile",
    "SealError",
    "SealKeys",
    "ToolKind",
    "Toolbox",
    "build_toolbox",
    "flatten_name",
    "load_stored_tools",
    "load_tools",
    "lower_call",
    "lower_message",
    "lower_output",
]
