"""All kinds of items in one union, and the item itself: its bytes beside the typed view of them.

Knows nothing of decoding. Invariant: every Struct of the union has its own `type` tag.
"""

from typing import Final, TypeAlias

import msgspec

from antiphon.protocol.hosted_items import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CodeInterpreterCall,
    ComputerCall,
    ComputerCallOutput,
    FileSearchCall,
    ImageGenerationCall,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    ShellCall,
    ShellCallOutput,
    WebSearchCall,
)
from antiphon.protocol.item_types import (
    AdditionalTools,
    AgentMessage,
    Compaction,
    CompactionSummary,
    CompactionTrigger,
    ConfigurationUpdate,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    ItemReference,
    Message,
    Program,
    ProgramOutput,
    Reasoning,
    ToolSearchCall,
    ToolSearchOutput,
    TypedItem,
    UnknownItem,
)

KnownItem: TypeAlias = (
    AdditionalTools
    | AgentMessage
    | ApplyPatchCall
    | ApplyPatchCallOutput
    | CodeInterpreterCall
    | Compaction
    | CompactionSummary
    | CompactionTrigger
    | ComputerCall
    | ComputerCallOutput
    | ConfigurationUpdate
    | CustomToolCall
    | CustomToolCallOutput
    | FileSearchCall
    | FunctionCall
    | FunctionCallOutput
    | ImageGenerationCall
    | ItemReference
    | LocalShellCall
    | LocalShellCallOutput
    | McpApprovalRequest
    | McpApprovalResponse
    | McpCall
    | McpListTools
    | Message
    | Program
    | ProgramOutput
    | Reasoning
    | ShellCall
    | ShellCallOutput
    | ToolSearchCall
    | ToolSearchOutput
    | WebSearchCall
)
ItemValue: TypeAlias = KnownItem | UnknownItem


class Item(msgspec.Struct, gc=False):
    """One item: its type, the bytes that arrived, and the typed view of them."""

    type: str
    raw: bytes
    value: ItemValue


#: What an id of each type begins with; only those that the API documents are checked on input.
ID_PREFIXES: Final[dict[str, str]] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fc",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "computer_call": "cu",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "compaction": "cmp",
    "compaction_summary": "cmp",
}
STRUCTS: Final[dict[str, type[TypedItem]]] = {
    str(kind.__struct_config__.tag): kind for kind in KnownItem.__args__
}
TYPE_NAMES: Final[dict[type, str]] = {kind: name for name, kind in STRUCTS.items()}
ITEM_TYPES: Final = tuple(sorted(STRUCTS))
