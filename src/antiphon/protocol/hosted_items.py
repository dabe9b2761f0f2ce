"""The items of hosted tools: searches, computers, shells, patches, images, MCP.

Antiphon keeps and replays them; it knows nothing of running such tools. Invariant as for all items: what
may be left out is None when it was left out or null.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from antiphon.protocol.content import ComputerScreenshot, Text
from antiphon.protocol.item_types import Arguments, Caller, CallId, ItemStatus, TypedItem


class FileSearchResult(msgspec.Struct, gc=False, omit_defaults=True):
    """One hit of a file search."""

    file_id: str | None = None
    filename: str | None = None
    score: float | None = None
    text: str | None = None
    attributes: dict[str, Any] | None = None


class FileSearchCall(TypedItem, kw_only=True, tag="file_search_call"):
    """The model searched files."""

    queries: list[str]
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"] | None = None
    results: list[FileSearchResult] | None = None


class Action(msgspec.Struct, tag_field="type", gc=False, omit_defaults=True):
    """What a call does; the `type` key tells actions apart."""


class SearchSource(msgspec.Struct, gc=False, omit_defaults=True):
    """A page that a search drew on."""

    url: str | None = None
    type: str = "url"


class SearchAction(Action, tag="search"):
    """Search the web."""

    query: str | None = None
    queries: list[str] | None = None
    sources: list[SearchSource] | None = None


class OpenPageAction(Action, tag="open_page"):
    """Open a page."""

    url: str | None = None


class FindInPageAction(Action, tag="find_in_page"):
    """Find text in a page."""

    url: str
    pattern: str


class WebSearchCall(TypedItem, kw_only=True, tag="web_search_call"):
    """The model searched the web; `results` is what it was shown, objects with `url`, `title` and `snippet`."""

    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"] | None = None
    action: SearchAction | OpenPageAction | FindInPageAction | None = None
    results: list[dict[str, Any]] | None = None
    error: Any = None


class Point(msgspec.Struct, gc=False):
    """A place on the screen, in pixels."""

    x: int
    y: int


class ClickAction(Action, tag="click"):
    """Click."""

    button: Literal["left", "right", "wheel", "back", "forward"]
    x: int
    y: int
    keys: list[str] | None = None


class DoubleClickAction(Action, tag="double_click"):
    """Double click."""

    x: int
    y: int
    keys: list[str] | None = None


class DragAction(Action, tag="drag"):
    """Drag along a path."""

    path: list[Point]
    keys: list[str] | None = None


class KeypressAction(Action, tag="keypress"):
    """Press keys together."""

    keys: list[str]


class MoveAction(Action, tag="move"):
    """Move the pointer."""

    x: int
    y: int
    keys: list[str] | None = None


class ScreenshotAction(Action, tag="screenshot"):
    """Take a screenshot."""


class ScrollAction(Action, tag="scroll"):
    """Scroll."""

    x: int
    y: int
    scroll_x: int
    scroll_y: int
    keys: list[str] | None = None


class TypeAction(Action, tag="type"):
    """Type text."""

    text: str


class WaitAction(Action, tag="wait"):
    """Wait."""


ComputerAction: TypeAlias = (
    ClickAction
    | DoubleClickAction
    | DragAction
    | KeypressAction
    | MoveAction
    | ScreenshotAction
    | ScrollAction
    | TypeAction
    | WaitAction
)


class SafetyCheck(msgspec.Struct, gc=False, omit_defaults=True):
    """A safety check that a person must acknowledge."""

    id: str
    code: str | None = None
    message: str | None = None


class ComputerCall(TypedItem, kw_only=True, tag="computer_call"):
    """The model uses a computer."""

    call_id: CallId
    pending_safety_checks: list[SafetyCheck] | None = None
    status: ItemStatus | None = None
    action: ComputerAction | None = None
    actions: list[ComputerAction] | None = None


class ComputerCallOutput(TypedItem, kw_only=True, tag="computer_call_output"):
    """What the computer showed."""

    call_id: CallId
    output: ComputerScreenshot
    acknowledged_safety_checks: list[SafetyCheck] | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"] | None = None
    created_by: str | None = None


class CodeLogs(Action, tag="logs"):
    """What the code printed."""

    logs: str


class CodeImage(Action, tag="image"):
    """An image that the code made."""

    url: str


class CodeInterpreterCall(TypedItem, kw_only=True, tag="code_interpreter_call"):
    """The model ran code in a container."""

    container_id: str
    code: str | None = None
    outputs: list[CodeLogs | CodeImage] | None = None
    status: Literal["in_progress", "completed", "incomplete", "interpreting", "failed"] | None = None


class ImageGenerationCall(TypedItem, kw_only=True, tag="image_generation_call"):
    """The model made an image; `result` is base64."""

    result: str | None = None
    status: Literal["in_progress", "generating", "completed", "failed"] | None = None
    error: dict[str, Any] | None = None


class ExecAction(Action, tag="exec"):
    """Run one command on the client's machine."""

    command: list[str]
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class LocalShellCall(TypedItem, kw_only=True, tag="local_shell_call"):
    """The model asks the client to run a command."""

    call_id: CallId
    action: ExecAction
    status: ItemStatus | None = None


class LocalShellCallOutput(TypedItem, kw_only=True, tag="local_shell_call_output"):
    """What the client's command gave; older clients name the call in `id` alone."""

    output: Text
    call_id: CallId | None = None
    status: ItemStatus | None = None


class ShellAction(msgspec.Struct, gc=False, omit_defaults=True):
    """Commands to run at the same time."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class ShellCall(TypedItem, kw_only=True, tag="shell_call"):
    """The model runs shell commands."""

    call_id: CallId
    action: ShellAction
    status: ItemStatus | None = None
    environment: dict[str, Any] | None = None
    caller: Caller | None = None
    created_by: str | None = None


class ExitOutcome(Action, tag="exit"):
    """The command ended."""

    exit_code: int


class TimeoutOutcome(Action, tag="timeout"):
    """The command ran out of time."""


class ShellResult(msgspec.Struct, gc=False, omit_defaults=True):
    """What one command printed, and how it ended."""

    stdout: Text
    stderr: Text
    outcome: ExitOutcome | TimeoutOutcome
    created_by: str | None = None


class ShellCallOutput(TypedItem, kw_only=True, tag="shell_call_output"):
    """What the shell commands gave."""

    call_id: CallId
    output: list[ShellResult]
    max_output_length: int | None = None
    status: ItemStatus | None = None
    caller: Caller | None = None
    created_by: str | None = None


class CreateFile(Action, tag="create_file"):
    """Create a file from a diff."""

    path: Annotated[str, Meta(min_length=1)]
    diff: Text


class UpdateFile(Action, tag="update_file"):
    """Change a file by a diff."""

    path: Annotated[str, Meta(min_length=1)]
    diff: Text


class DeleteFile(Action, tag="delete_file"):
    """Delete a file."""

    path: Annotated[str, Meta(min_length=1)]


class ApplyPatchCall(TypedItem, kw_only=True, tag="apply_patch_call"):
    """The model changes a file."""

    call_id: CallId
    operation: CreateFile | UpdateFile | DeleteFile
    status: Literal["in_progress", "completed"]
    caller: Caller | None = None
    created_by: str | None = None


class ApplyPatchCallOutput(TypedItem, kw_only=True, tag="apply_patch_call_output"):
    """Whether the change was made."""

    call_id: CallId
    status: Literal["completed", "failed"]
    output: Text | None = None
    caller: Caller | None = None
    created_by: str | None = None


class McpListedTool(msgspec.Struct, gc=False, omit_defaults=True):
    """One tool of an MCP server."""

    name: str
    input_schema: Any
    description: str | None = None
    annotations: Any = None


class McpListTools(TypedItem, kw_only=True, tag="mcp_list_tools"):
    """The tools of an MCP server."""

    server_label: str
    tools: list[McpListedTool]
    error: Any = None


class McpCall(TypedItem, kw_only=True, tag="mcp_call"):
    """The model called a tool of an MCP server."""

    server_label: str
    name: str
    arguments: Arguments
    output: str | None = None
    error: Any = None
    status: Literal["in_progress", "completed", "incomplete", "calling", "failed"] | None = None
    approval_request_id: str | None = None


class McpApprovalRequest(TypedItem, kw_only=True, tag="mcp_approval_request"):
    """The model wants to call a tool of an MCP server."""

    server_label: str
    name: str
    arguments: Arguments


class McpApprovalResponse(TypedItem, kw_only=True, tag="mcp_approval_response"):
    """Whether it may."""

    approval_request_id: str
    approve: bool
    reason: str | None = None
