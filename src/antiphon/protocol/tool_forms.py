"""The tools that a request may declare, and the forms of its choice among them, as Structs.

Knows nothing of checks across tools. Invariant: every Struct refuses keys that it does not name.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from antiphon.protocol.content import Text
from antiphon.protocol.item_types import ToolName

AllowedCallers: TypeAlias = list[Literal["direct", "programmatic"]]
ChoiceWord: TypeAlias = Literal["none", "auto", "required"]


class ToolForm(
    msgspec.Struct,
    kw_only=True,
    tag_field="type",
    forbid_unknown_fields=True,
    omit_defaults=True,
    gc=False,
):
    """What all tools share: the `type` key tells them apart, and no unknown key is let through."""


class Closed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """An object inside a tool that knows all its keys."""


class FunctionTool(ToolForm, kw_only=True, tag="function"):
    """A function that the client runs; `parameters` is a JSON schema, None for a function without any."""

    name: ToolName
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: Text | None = None
    is_async: bool | None = msgspec.field(name="async", default=None)
    defer_loading: bool | None = None
    allowed_callers: AllowedCallers | None = None
    output_schema: dict[str, Any] | None = None


class GrammarFormat(Closed, kw_only=True, tag_field="type", tag="grammar"):
    """A custom tool's input follows a grammar."""

    syntax: Literal["lark", "regex"]
    definition: str


class PlainFormat(Closed, kw_only=True, tag_field="type", tag="text"):
    """A custom tool's input is any text."""


class CustomTool(ToolForm, kw_only=True, tag="custom"):
    """A tool of the client's that takes raw text."""

    name: ToolName
    description: Text | None = None
    format: PlainFormat | GrammarFormat | None = None
    is_async: bool | None = msgspec.field(name="async", default=None)
    defer_loading: bool | None = None
    allowed_callers: AllowedCallers | None = None


class NamespaceTool(ToolForm, kw_only=True, tag="namespace"):
    """A named group of functions and custom tools."""

    name: ToolName
    description: Text
    tools: list[FunctionTool | CustomTool]


class ToolSearchTool(ToolForm, kw_only=True, tag="tool_search"):
    """Lets the model look for tools."""

    execution: Literal["server", "client"] | None = None
    description: Text | None = None
    parameters: dict[str, Any] | None = None


class ProgrammaticTool(ToolForm, kw_only=True, tag="programmatic_tool_calling"):
    """Lets the model call its tools from a program."""


class HybridSearch(Closed, kw_only=True):
    """How embedding and text matches weigh."""

    embedding_weight: float
    text_weight: float


class RankingOptions(Closed, kw_only=True):
    """How file search ranks its hits."""

    ranker: str | None = None
    score_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    hybrid_search: HybridSearch | None = None


class FileSearchTool(ToolForm, kw_only=True, tag="file_search"):
    """Searches vector stores."""

    vector_store_ids: list[str]
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    filters: dict[str, Any] | None = None
    ranking_options: RankingOptions | None = None


class DomainFilters(Closed, kw_only=True):
    """Which sites a web search may use."""

    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None


class UserLocation(Closed, kw_only=True):
    """Where the user is, roughly."""

    type: Literal["approximate"] | None = None
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class WebSearchTool(ToolForm, kw_only=True, tag="web_search"):
    """Searches the web."""

    filters: DomainFilters | None = None
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: UserLocation | None = None
    external_web_access: bool | None = None


class DatedWebSearchTool(WebSearchTool, kw_only=True, tag="web_search_2025_08_26"):
    """Searches the web, by its dated name."""


class WebSearchPreviewTool(ToolForm, kw_only=True, tag="web_search_preview"):
    """Searches the web, the older way."""

    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: UserLocation | None = None
    search_content_types: list[Literal["text", "image"]] | None = None


class DatedWebSearchPreviewTool(WebSearchPreviewTool, kw_only=True, tag="web_search_preview_2025_03_11"):
    """Searches the web, the older way, by its dated name."""


class ComputerTool(ToolForm, kw_only=True, tag="computer"):
    """Uses a computer."""


class ComputerPreviewTool(ToolForm, kw_only=True, tag="computer_use_preview"):
    """Uses a computer, the older way."""

    display_width: int
    display_height: int
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]


class McpToolFilter(Closed, kw_only=True):
    """Some tools of an MCP server."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class McpApprovalRules(Closed, kw_only=True):
    """Which tools of an MCP server need approval."""

    always: McpToolFilter | None = None
    never: McpToolFilter | None = None


class McpTool(ToolForm, kw_only=True, tag="mcp"):
    """The tools of an MCP server. `authorization` and `headers` are secrets."""

    server_label: Annotated[str, Meta(min_length=1)]
    server_url: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    server_description: str | None = None
    allowed_tools: list[str] | McpToolFilter | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    require_approval: Literal["always", "never"] | McpApprovalRules | None = None
    defer_loading: bool | None = None
    allowed_callers: AllowedCallers | None = None


class AutoContainer(Closed, kw_only=True, tag_field="type", tag="auto"):
    """A container made for the code interpreter."""

    file_ids: list[str] | None = None
    memory_limit: Literal["1g", "4g", "16g", "64g"] | None = None
    network_policy: dict[str, Any] | None = None


class CodeInterpreterTool(ToolForm, kw_only=True, tag="code_interpreter"):
    """Runs code in a container."""

    container: str | AutoContainer
    allowed_callers: AllowedCallers | None = None


class ImageMask(Closed, kw_only=True):
    """The part of an image to change."""

    file_id: str | None = None
    image_url: str | None = None


class ImageGenerationTool(ToolForm, kw_only=True, tag="image_generation"):
    """Makes images."""

    action: Literal["generate", "edit", "auto"] | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None
    complexity: Literal["low", "medium", "high"] | None = None
    frame_count: int | None = None
    frame_duration_ms: int | None = None
    input_fidelity: Literal["high", "low"] | None = None
    input_image_mask: ImageMask | None = None
    model: str | None = None
    moderation: Literal["auto", "low"] | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    output_format: Literal["png", "webp", "jpeg", "gif", "svg"] | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None
    quality: Literal["low", "medium", "high", "xhigh", "max", "auto"] | None = None
    size: str | None = None
    svg: dict[str, Any] | None = None


class LocalShellTool(ToolForm, kw_only=True, tag="local_shell"):
    """Runs commands on the client's machine."""


class ShellTool(ToolForm, kw_only=True, tag="shell"):
    """Runs shell commands in an environment."""

    environment: dict[str, Any] | None = None
    allowed_callers: AllowedCallers | None = None


class ApplyPatchTool(ToolForm, kw_only=True, tag="apply_patch"):
    """Changes files by diffs."""

    allowed_callers: AllowedCallers | None = None


Tool: TypeAlias = (
    FunctionTool
    | CustomTool
    | NamespaceTool
    | ToolSearchTool
    | ProgrammaticTool
    | FileSearchTool
    | WebSearchTool
    | DatedWebSearchTool
    | WebSearchPreviewTool
    | DatedWebSearchPreviewTool
    | ComputerTool
    | ComputerPreviewTool
    | McpTool
    | CodeInterpreterTool
    | ImageGenerationTool
    | LocalShellTool
    | ShellTool
    | ApplyPatchTool
)


# The choice among them


class ChoiceForm(ToolForm, kw_only=True):
    """What all choices of a tool share."""


class FunctionChoice(ChoiceForm, kw_only=True, tag="function"):
    """This function."""

    name: ToolName


class CustomChoice(ChoiceForm, kw_only=True, tag="custom"):
    """This custom tool."""

    name: ToolName


class McpChoice(ChoiceForm, kw_only=True, tag="mcp"):
    """This MCP server, or this tool of it."""

    server_label: str
    name: str | None = None


class AllowedToolsChoice(ChoiceForm, kw_only=True, tag="allowed_tools"):
    """Only these tools; the whole list still goes to the model."""

    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class FileSearchChoice(ChoiceForm, kw_only=True, tag="file_search"):
    """File search."""


class WebSearchChoice(ChoiceForm, kw_only=True, tag="web_search_preview"):
    """Web search."""


class DatedWebSearchChoice(ChoiceForm, kw_only=True, tag="web_search_preview_2025_03_11"):
    """Web search, by its dated name."""


class ComputerChoice(ChoiceForm, kw_only=True, tag="computer"):
    """The computer."""


class ComputerUseChoice(ChoiceForm, kw_only=True, tag="computer_use"):
    """The computer, by its older name."""


class ComputerPreviewChoice(ChoiceForm, kw_only=True, tag="computer_use_preview"):
    """The computer, by its oldest name."""


class ImageGenerationChoice(ChoiceForm, kw_only=True, tag="image_generation"):
    """Image generation."""


class CodeInterpreterChoice(ChoiceForm, kw_only=True, tag="code_interpreter"):
    """The code interpreter."""


class ApplyPatchChoice(ChoiceForm, kw_only=True, tag="apply_patch"):
    """Patches."""


class ShellChoice(ChoiceForm, kw_only=True, tag="shell"):
    """The shell."""


class ProgrammaticChoice(ChoiceForm, kw_only=True, tag="programmatic_tool_calling"):
    """Programs."""


HostedChoice: TypeAlias = (
    FileSearchChoice
    | WebSearchChoice
    | DatedWebSearchChoice
    | ComputerChoice
    | ComputerUseChoice
    | ComputerPreviewChoice
    | ImageGenerationChoice
    | CodeInterpreterChoice
    | ApplyPatchChoice
    | ShellChoice
    | ProgrammaticChoice
)
ToolChoice: TypeAlias = (
    ChoiceWord | FunctionChoice | CustomChoice | McpChoice | AllowedToolsChoice | HostedChoice
)
