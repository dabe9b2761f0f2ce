"""Facts about a model that change what we send it or how we read its answer.

A profile is data: it knows no server and does nothing. The table of known ones is in `backends`.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from antiphon.protocol.requests import Effort

#: Request hints that a server may take by the same name.
Hint: TypeAlias = Literal[
    "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "user"
]


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about one model behind one server; the defaults suit a server we know nothing about."""

    name: str = "default"
    #: Tokens that prompt and output share; None: ask the server.
    window_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    #: None: unknown, images are sent and the server decides.
    sees_images: bool | None = None
    #: `native`: the server takes `tools`; `schema`: they are told in the prompt, and the model answers with
    #: constrained JSON that is a call or a reply; `none`: tools are left out.
    tools: Literal["native", "schema", "none"] = "native"
    #: `named`: takes the object form; `required`: takes the word only, so one forced tool is sent alone;
    #: `ignored`: takes neither, so the answer is checked and asked for once more.
    tool_choice: Literal["named", "required", "ignored"] = "required"
    #: Parallel calls are off unless they are asked for; in the API they are on.
    asks_for_parallel_calls: bool = False
    #: Whether the server can report progress on a long prompt; llama.cpp notices that a client left only when
    #: it writes, so without these reports it works through the whole prompt for nobody.
    asks_for_progress: bool = False
    #: Values of `reasoning.effort` that the server knows, weakest first; empty: it has no such setting.
    efforts: tuple[Effort, ...] = ()
    #: Where the effort is told: a field of its own, or an argument for the chat template (llama.cpp).
    effort_field: Literal["reasoning_effort", "chat_template_kwargs"] = "reasoning_effort"
    #: The name of the output limit.
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    #: Whether an output limit that the window has no room for is refused, so that we set none of our own.
    refuses_large_limits: bool = False
    #: Whether a prompt that does not fit is cut without a word, so that it is counted before it is sent.
    truncates_silently: bool = False
    #: The key of an assistant message that carries its earlier reasoning back; `none`: not sent back.
    reasoning_field: Literal["reasoning_content", "reasoning", "thinking", "none"] = "reasoning_content"
    #: Text that starts with `<think>` is reasoning up to `</think>`.
    think_tags: bool = True
    #: `first`: the template takes one system message, at the start; `anywhere`: it takes any number.
    system_messages: Literal["first", "anywhere"] = "first"
    #: How `text.format` json_object is told: as itself, or as the schema of any object.
    json_object: Literal["native", "schema"] = "native"
    #: Whether `text.verbosity` has a field upstream.
    verbosity: bool = False
    #: Whether `stream_options.include_usage` may be sent.
    stream_usage: bool = True
    #: Whether an answer can be constrained by a JSON schema while tools are offered.
    takes_schema_with_tools: bool = True
    #: Whether a call can be forced of a tool that stands behind all others without the prompt's prefix losing its
    #: place in the server's cache. Servers that tell tools before the messages lose it.
    forces_tool_cached: bool = False
    #: Request hints that the server understands and that are passed on by these names.
    hints: tuple[Hint, ...] = ()
