"""The family of tools: each type, each of its settings, each choice and each value of `include`.

A tool is run, handed to the client as a call, refused by its name, or left out with a word about it. Invariant:
an answer that neither uses nor names a demanded tool is no pass.
"""

from functools import partial
from typing import Any

import msgspec

from antiphon.checker.answers import Refusal, read_response
from antiphon.checker.recordings import Recording
from antiphon.checker.requirements.judging import (
    dig,
    find_warning,
    holds,
    judge_refusal,
    read_list,
    read_objects,
    tell,
)
from antiphon.checker.requirements.requirement import Requirement
from antiphon.checker.requirements.speaking import GREETING, TOOL
from antiphon.checker.subject import Subject, user
from antiphon.checker.verdicts import Outcome, Verdict, failed, passed, unasked, undecided

_API = "OpenAI API reference, Responses"
#: Nothing listens there.
NOWHERE = "http://127.0.0.1:9/mcp"

_NAMED = {
    "name": "lookup",
    "description": "Looks a word up.",
    "parameters": {"type": "object", "properties": {}},
}
_LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "door"'}


class ToolCase(msgspec.Struct, frozen=True):
    """A tool, a task for it, and the types of the items that it makes."""

    tool: dict[str, Any]
    task: str
    items: tuple[str, ...]
    #: Setting -> its telling value; `.` goes into it.
    settings: dict[str, Any] = {}

    @property
    def type(self) -> str:
        """The tool's type."""
        return str(self.tool["type"])


_MCP = {"type": "mcp", "server_label": "echo", "server_url": NOWHERE}
_SEARCH_TASK = "Search the web for the height of the tower."
_SIZE = {"search_context_size": "low"}
_LOCATION = {"user_location": {"type": "approximate", "city": "Oslo", "country": "NO"}}

TOOL_CASES: tuple[ToolCase, ...] = (
    ToolCase(
        TOOL,
        "Open the vault named door with the tool.",
        ("function_call",),
        {
            **{name: TOOL[name] for name in ("name", "parameters", "strict", "description")},
            "async": True,
            "defer_loading": True,
            "allowed_callers": ["programmatic"],
            "output_schema": {"type": "object", "properties": {"number": {"type": "string"}}},
        },
    ),
    ToolCase(
        {"type": "custom", "name": "write_note", "description": "Writes a note down."},
        'Use the tool write_note for "door".',
        ("custom_tool_call",),
        {
            "name": "write_note",
            "description": "Writes a note down.",
            "format.type": {"type": "text"},
            "format.syntax": _LARK,
            "format.definition": _LARK,
            "async": True,
            "defer_loading": True,
            "allowed_callers": ["programmatic"],
        },
    ),
    ToolCase(
        {
            "type": "namespace",
            "name": "vaults",
            "description": "All about vaults.",
            "tools": [{"type": "function", "strict": False, **_NAMED}],
        },
        "Use the tool lookup.",
        ("function_call",),
        {
            "name": "vaults",
            "description": "All about vaults.",
            "tools": [{"type": "function", "name": "lookup"}],
        },
    ),
    ToolCase(
        {"type": "tool_search", "execution": "client", "description": "Finds tools."},
        "Use tool_search for a tool that opens a vault.",
        ("tool_search_call",),
        {
            "execution": "server",
            "description": "Finds tools.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    ),
    ToolCase({"type": "programmatic_tool_calling"}, "Call tools from a program.", ("program",)),
    ToolCase(
        {"type": "file_search", "vector_store_ids": ["vs_of_no_server"]},
        "Search the files for the tower.",
        ("file_search_call",),
        {
            "vector_store_ids": ["vs_of_no_server"],
            "max_num_results": 3,
            "filters": {"type": "eq", "key": "city", "value": "Oslo"},
            "ranking_options": {"ranker": "auto", "score_threshold": 0.5},
        },
    ),
    ToolCase(
        {"type": "web_search"},
        _SEARCH_TASK,
        ("web_search_call",),
        {
            "filters": {"allowed_domains": ["tower.example"]},
            **_SIZE,
            **_LOCATION,
            "external_web_access": False,
        },
    ),
    ToolCase({"type": "web_search_2025_08_26"}, _SEARCH_TASK, ("web_search_call",)),
    ToolCase(
        {"type": "web_search_preview"},
        _SEARCH_TASK,
        ("web_search_call",),
        {**_SIZE, **_LOCATION, "search_content_types": ["text"]},
    ),
    ToolCase({"type": "web_search_preview_2025_03_11"}, _SEARCH_TASK, ("web_search_call",)),
    ToolCase({"type": "computer"}, "Click the button.", ("computer_call",)),
    ToolCase(
        {
            "type": "computer_use_preview",
            "display_width": 800,
            "display_height": 600,
            "environment": "browser",
        },
        "Click the button.",
        ("computer_call",),
        {"display_width": 801, "display_height": 601, "environment": "linux"},
    ),
    ToolCase(
        _MCP,
        "Use the tool say of the server echo.",
        ("mcp_list_tools", "mcp_call"),
        {
            "server_label": "other",
            "server_url": NOWHERE,
            "connector_id": "connector_dropbox",
            "tunnel_id": "tunnel_1",
            "allowed_tools": ["say"],
            "require_approval": "always",
            "server_description": "Repeats.",
            "defer_loading": True,
            "allowed_callers": ["programmatic"],
        },
    ),
    ToolCase(
        {"type": "code_interpreter", "container": {"type": "auto"}},
        "Compute 2 to the 10th by code.",
        ("code_interpreter_call",),
        {"container": {"type": "auto", "memory_limit": "4g"}, "allowed_callers": ["programmatic"]},
    ),
    ToolCase(
        {"type": "image_generation"},
        "Draw a tower.",
        ("image_generation_call",),
        {
            "action": "generate",
            "background": "opaque",
            "complexity": "low",
            "frame_count": 2,
            "frame_duration_ms": 100,
            "input_fidelity": "low",
            "input_image_mask": {"file_id": "file_1"},
            "model": "gpt-image-1",
            "moderation": "low",
            "output_compression": 50,
            "output_format": "webp",
            "partial_images": 2,
            "quality": "low",
            "size": "1024x1024",
            "svg": {"precision": 2},
        },
    ),
    ToolCase({"type": "local_shell"}, "Run ls in the local_shell.", ("local_shell_call",)),
    ToolCase(
        {"type": "shell", "environment": {"type": "local"}},
        "Run ls in the shell.",
        ("shell_call",),
        {"environment": {"type": "container_auto"}, "allowed_callers": ["programmatic"]},
    ),
    ToolCase(
        {"type": "apply_patch"},
        "Create the file door.txt by apply_patch.",
        ("apply_patch_call",),
        {"allowed_callers": ["programmatic"]},
    ),
)
TOOLS: dict[str, ToolCase] = {case.type: case for case in TOOL_CASES}
#: Items whose only cause is a setting that the server may refuse: what is asked with it stands for them.
_CAUSED = {
    "tools.tool_search.execution": ("output:tool_search_output", "output:additional_tools"),
    "tools.shell.environment": ("output:shell_call_output",),
}


async def record_tool(subject: Subject, case: ToolCase) -> Recording | Refusal:
    """The stream of the tool's task, in which its use is demanded."""
    tool = case.tool
    if case.type == "mcp" and subject.mcp_url is not None:
        tool = {**tool, "server_url": subject.mcp_url, "require_approval": "never"}
    return await subject.try_record(
        f"tool {case.type}", input=[user(case.task)], tools=[tool], tool_choice="required"
    )


#: What the probes of MCP need, to see more than that a server cannot be reached.
MCP_NEEDS = "--mcp-url"


def need_mcp(subject: Subject, outcome: Outcome) -> Outcome:
    """Undecided for lack of an MCP server, where there is none and that decided nothing."""
    if outcome.verdict is not Verdict.UNKNOWN or subject.mcp_url is not None:
        return outcome
    return unasked(MCP_NEEDS, f"needs an MCP server that can be reached ({outcome.explanation})")


async def probe_tool(case: ToolCase, subject: Subject) -> Outcome:
    """The tool demanded, in a stream."""
    outcome = await _try_tool(case, subject)
    return need_mcp(subject, outcome) if case.type == "mcp" else outcome


async def _try_tool(case: ToolCase, subject: Subject) -> Outcome:
    recording = await record_tool(subject, case)
    if isinstance(recording, Refusal):
        return judge_refusal(recording, case.type, "tools[0]", "tool_choice")
    answer = read_response(recording.response)
    if isinstance(answer, Refusal):
        return judge_refusal(answer, case.type, "tools[0]", str(case.tool.get("server_label")))
    if answer is None:
        return undecided("the stream has no terminal event with a response")
    types = [str(item.get("type")) for item in answer.output]
    if case.items[0] in types:
        return passed(f"used: {', '.join(types)}", items=len(types))
    warning = find_warning(answer.body, case.type)
    if warning is not None:
        return passed(f"left out, and the response says so ({warning})")
    if not any(dig(tool, "type") == case.type for tool in read_list(answer.body.get("tools"))):
        return failed("the tool was taken and left out without a word", items=", ".join(types))
    if answer.status == "incomplete":
        return undecided("the answer was cut before the tool was used")
    return failed(
        f"completed without {case.items[0]}, although tool_choice demands it", items=", ".join(types)
    )


async def probe_setting(case: ToolCase, name: str, subject: Subject) -> Outcome:
    """The tool with one setting more, offered and not demanded."""
    top = name.partition(".")[0]
    tool = {**case.tool, top: case.settings[name]}
    if case.type == "mcp" and top in ("connector_id", "tunnel_id"):
        tool.pop("server_url")
    # What is deferred must be there to be found.
    others = [TOOLS["tool_search"].tool] if top == "defer_loading" else []
    answer, body = await subject.send(
        model=subject.model, input=GREETING, tools=[tool, *others], tool_choice="none"
    )
    if isinstance(answer, Refusal):
        names = (f"tools[0].{top}", top, case.type, "tools[0]", *(["tool_search"] * len(others)))
        return judge_refusal(answer, *names)
    found = dig(answer.body, f"tools.0.{top}")
    if holds(found, case.settings[name]):
        return passed(f"the response says {top} {tell(found)}")
    warning = find_warning(body, top, case.type)
    if warning is not None:
        return passed(f"left out, and the response says so ({warning})")
    return failed(f"answered, and the response says {tell(found)} for {top} of the tool")


async def probe_approval(subject: Subject) -> Outcome:
    """A tool that needs approval: the response ends with the request, and goes on when it is approved."""
    if subject.mcp_url is None:
        return unasked(MCP_NEEDS, "needs an MCP server that can be reached")
    tool = {**_MCP, "server_url": subject.mcp_url, "require_approval": "always"}
    task = user(TOOLS["mcp"].task)
    first = await subject.create([task], tools=[tool], tool_choice="required")
    if isinstance(first, Refusal):
        return judge_refusal(first, "mcp", "tools[0]", "require_approval")
    request = next((item for item in first.output if item.get("type") == "mcp_approval_request"), None)
    types = [str(item.get("type")) for item in first.output]
    if "mcp_call" in types:
        return failed("the tool was called, although it needs approval", items=", ".join(types))
    if not any(dig(tool, "type") == "mcp" for tool in read_list(first.body.get("tools"))):
        return failed("the tool was taken and left out without a word", items=", ".join(types))
    if request is None:
        return undecided("the model did not ask to call a tool", items=", ".join(types))
    answer = {"type": "mcp_approval_response", "approval_request_id": request.get("id"), "approve": True}
    second = await subject.create([answer], previous=first.id, tools=[tool])
    if isinstance(second, Refusal):
        return failed(f"the approval is refused ({second})")
    calls = [item for item in second.output if item.get("type") == "mcp_call"]
    if not calls:
        return failed("the call was approved, and was not made")
    return passed("asked for, approved, called")


async def probe_secret(name: str, value: Any, subject: Subject) -> Outcome:
    """An MCP server's secret: taken or refused, and never repeated."""
    tool = {**_MCP, name: value}
    answer, body = await subject.send(model=subject.model, input=GREETING, tools=[tool], tool_choice="none")
    secret = "s3cret-of-the-check"  # noqa: S105 - nobody's secret
    if secret in msgspec.json.encode(body).decode():
        return failed(f"the secret in `{name}` is repeated in the answer")
    if isinstance(answer, Refusal):
        return judge_refusal(answer, name, "mcp", "tools[0]")
    stored = await subject.fetch("GET", f"/responses/{answer.id}")
    if secret.encode() in stored.raw:
        return failed(f"the secret in `{name}` stands in the stored response")
    if not any(dig(tool, "type") == "mcp" for tool in read_list(answer.body.get("tools"))):
        return failed("the tool was taken and left out without a word")
    return passed("taken, and not repeated in the response")


# Choices.


class ChoiceCase(msgspec.Struct, frozen=True):
    """A choice among tools, and the type of the item that it demands."""

    name: str
    choice: Any
    tools: tuple[str, ...]
    item: str


def _hosted(name: str, tool: str = "") -> ChoiceCase:
    case = TOOLS[tool or name]
    return ChoiceCase(name, {"type": name}, (case.type,), case.items[0])


CHOICE_CASES: tuple[ChoiceCase, ...] = (
    ChoiceCase("function", {"type": "function", "name": "open_vault"}, ("function",), "function_call"),
    ChoiceCase("custom", {"type": "custom", "name": "write_note"}, ("custom",), "custom_tool_call"),
    ChoiceCase("mcp", {"type": "mcp", "server_label": "echo"}, ("mcp",), "mcp_call"),
    _hosted("file_search"),
    _hosted("web_search_preview"),
    _hosted("web_search_preview_2025_03_11"),
    _hosted("computer"),
    _hosted("computer_use", "computer"),
    _hosted("computer_use_preview"),
    _hosted("image_generation"),
    _hosted("code_interpreter"),
    _hosted("apply_patch"),
    _hosted("shell"),
    _hosted("programmatic_tool_calling"),
)


async def probe_choice(case: ChoiceCase, subject: Subject) -> Outcome:
    """A greeting with the choice: its item comes, or it is refused by its name."""
    if case.name == "mcp" and subject.mcp_url is None:
        return unasked(MCP_NEEDS, "needs an MCP server that can be reached")
    tools = [TOOLS[name].tool for name in case.tools]
    if case.name == "mcp" and subject.mcp_url is not None:
        tools = [{**_MCP, "server_url": subject.mcp_url, "require_approval": "never"}]
    answer = await subject.create([user(GREETING)], tools=tools, tool_choice=case.choice)
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "tool_choice", "tools[0]", case.name, "echo")
    types = [str(item.get("type")) for item in answer.output]
    if case.item in types:
        return passed(f"the choice was followed: {', '.join(types)}")
    if answer.status == "incomplete":
        return undecided("the answer was cut before the tool was used")
    told = f"completed without {case.item}, although tool_choice demands it"
    return failed(told, items=", ".join(types), tool_choice=str(answer.body.get("tool_choice"))[:80])


async def probe_allowed_tools(subject: Subject) -> Outcome:
    """Two tools, one allowed; the task names the other."""
    other = {**TOOL, "name": "close_vault"}
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "close_vault"}],
    }
    task = user("Open the vault named door with the tool open_vault.")
    answer = await subject.create([task], tools=[TOOL, other], tool_choice=choice)
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "tool_choice", "allowed_tools")
    called = [str(call.get("name")) for call in answer.calls]
    if any(name != "close_vault" for name in called):
        return failed(f"the model called {', '.join(called)}, and only close_vault is allowed")
    if not called and answer.status != "incomplete":
        return failed("completed without a call, although the mode is required")
    if not called:
        return undecided("the answer was cut before a call")
    return passed("only the allowed tool is called", calls=len(called))


async def probe_auto(subject: Subject) -> Outcome:
    """tool_choice auto: the response says so."""
    answer = await subject.create([user(GREETING)], tools=[TOOL], tool_choice="auto")
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "tool_choice", "tools[0]")
    told = answer.body.get("tool_choice")
    return (
        passed("the response says auto")
        if told == "auto"
        else failed(f"the response says tool_choice {tell(told)}")
    )


# Values of include.

#: Value -> the tool whose item shows it, and where in that item.
INCLUDE_CASES: dict[str, tuple[str, str]] = {
    "file_search_call.results": ("file_search", "results"),
    "web_search_call.results": ("web_search", "results"),
    "web_search_call.action.sources": ("web_search", "action.sources"),
    "computer_call_output.output.image_url": ("computer", "output.image_url"),
    "code_interpreter_call.outputs": ("code_interpreter", "outputs"),
}
_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmM"
    "IQAAAABJRU5ErkJggg=="
)


async def probe_include_of_tool(value: str, tool: str, place: str, subject: Subject) -> Outcome:
    """The tool's item with the value included, and without it."""
    case = TOOLS[tool]
    found: list[Any] = []
    for include in ([value], []):
        answer = await subject.create(
            [user(case.task)], tools=[case.tool], tool_choice="required", include=include
        )
        if isinstance(answer, Refusal):
            return judge_refusal(answer, value, "include", tool, "tools[0]", "tool_choice")
        items = [item for item in answer.output if item.get("type") == case.items[0]]
        if not items:
            return _judge_unused(tool, answer.body)
        found.append(dig(items[0], place))
    if found[0] is None:
        return failed(f"{place} was asked for by include, and is not there")
    if found[1] is not None:
        return failed(f"{place} is there without being asked for")
    return passed(f"{place} is there where it is asked for, and only there")


def _judge_unused(tool: str, body: Any) -> Outcome:
    warning = find_warning(body, tool)
    if warning is not None:
        return passed(f"there is nothing to include: the tool is left out ({warning})")
    return failed(f"{tool} was demanded and not used, so include had no effect")


async def probe_include_logprobs(subject: Subject) -> Outcome:
    """Log probabilities of the text, where the model has them."""
    answer = await subject.create([user(GREETING)], include=["message.output_text.logprobs"], top_logprobs=2)
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "include", "logprobs")
    told = [
        part["logprobs"]
        for item in answer.output
        for part in read_objects(item.get("content"))
        if part.get("type") == "output_text" and part.get("logprobs")
    ]
    if told:
        return passed("the text has the log probabilities of its tokens", texts=len(told))
    warning = find_warning(answer.body, "logprobs", "log prob")
    if warning is not None:
        return passed(f"left out, and the response says so ({warning})")
    return failed("accepted, and no text has log probabilities, without a word why")


async def probe_include_encrypted(subject: Subject) -> Outcome:
    """Sealed reasoning of a model that reasons."""
    recording = await subject.try_record(
        "reasoning",
        input=[user("Think hard, then say hello.")],
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        store=False,
    )
    if isinstance(recording, Refusal):
        return judge_refusal(recording, "include", "reasoning")
    items = [item for item in recording.outputs if dig(item, "type") == "reasoning"]
    if not items:
        return unasked("a model that reasons", "the model did not reason, so there was nothing to seal")
    if all(isinstance(dig(item, "encrypted_content"), str) for item in items):
        return passed("every reasoning item carries its sealed content")
    return failed("a reasoning item has no encrypted_content, although include asks for it")


async def probe_include_image(subject: Subject) -> Outcome:
    """The URL of an image that was sent, in the list of input items."""
    image = {"type": "input_image", "image_url": _PIXEL, "detail": "auto"}
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look."}, image]}
    answer = await subject.create([message], include=["message.input_image.image_url"])
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "include", "image", "input[0]")
    page = await subject.fetch(
        "GET", f"/responses/{answer.id}/input_items?include[]=message.input_image.image_url"
    )
    if page.refusal is not None:
        return judge_refusal(page.refusal, "include")
    if _PIXEL.encode() in page.raw:
        return passed("the listed message shows the image's URL")
    return failed("the listed message does not show the image's URL, although include asks for it")


def _make_requirements() -> list[Requirement]:
    made = []
    for case in TOOL_CASES:
        covers = [f"tool:{case.type}", *(f"output:{item}" for item in case.items)]
        covers += ["field:tools"] * (case.type == "function")
        covers += ["output:program_output"] * (case.type == "programmatic_tool_calling")
        told = f"A demanded {case.type} tool is used, refused by its name, or told to be left out."
        source = f"{_API}: tools"
        made.append(
            Requirement(f"tools.{case.type}", "tools", source, told, partial(probe_tool, case), tuple(covers))
        )
        for name in case.settings:
            subject = f"tools.{case.type}.{name}"
            told = f"`{name}` of a {case.type} tool stands in the response, or is refused by its name."
            probe = partial(probe_setting, case, name)
            covered = (f"field:{subject}", *_CAUSED.get(subject, ()))
            made.append(Requirement(subject, "tools", source, told, probe, covered))
    secret = "s3cret-of-the-check"  # noqa: S105 - nobody's secret
    secrets: dict[str, Any] = {"authorization": secret, "headers": {"x-key": secret}}
    for name, value in secrets.items():
        told = f"The secret in `{name}` of an mcp tool is never repeated; or the tool is refused."
        probe = partial(probe_secret, name, value)
        covered = (f"field:tools.mcp.{name}",)
        made.append(Requirement(f"tools.mcp.{name}", "tools", f"{_API}: mcp", told, probe, covered))
    told = "A tool of an MCP server that needs approval is not called without it, and called with it."
    covered = ("output:mcp_approval_request",)
    made.append(Requirement("tools.mcp.approval", "tools", f"{_API}: mcp", told, probe_approval, covered))
    return made


def _make_choices() -> list[Requirement]:
    source = f"{_API}: tool_choice"
    made = [
        Requirement(
            f"choices.{case.name}",
            "choices",
            source,
            f"A tool_choice of type {case.name} is followed, or refused by its name.",
            partial(probe_choice, case),
            (f"choice:{case.name}",),
        )
        for case in CHOICE_CASES
    ]
    auto = "A tool_choice of auto stands in the response."
    allowed = "With allowed_tools no other tool is called, or the choice is refused by its name."
    return [
        Requirement(
            "choices.auto", "choices", source, auto, probe_auto, ("choice:auto", "field:tool_choice")
        ),
        Requirement(
            "choices.allowed_tools",
            "choices",
            source,
            allowed,
            probe_allowed_tools,
            ("choice:allowed_tools",),
        ),
        *made,
    ]


def _make_includes() -> list[Requirement]:
    source = f"{_API}: include"

    def make(value: str, probe: Any) -> Requirement:
        told = f"{value} is included where it is asked for, refused by its name, or told to be left out."
        covers = (f"include:{value}", *(["field:include"] * (value == "message.output_text.logprobs")))
        return Requirement(f"includes.{value}", "includes", source, told, probe, tuple(covers))

    return [
        *(
            make(value, partial(probe_include_of_tool, value, tool, place))
            for value, (tool, place) in INCLUDE_CASES.items()
        ),
        make("message.output_text.logprobs", probe_include_logprobs),
        make("reasoning.encrypted_content", probe_include_encrypted),
        make("message.input_image.image_url", probe_include_image),
    ]


REQUIREMENTS: tuple[Requirement, ...] = (*_make_requirements(), *_make_choices(), *_make_includes())
