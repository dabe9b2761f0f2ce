"""How servers' own Responses interfaces differ from the API: a table by profile, and nothing else.

It knows no request and no event. A server that is not named here is taken at its word: everything goes to it
as it came.
"""

import msgspec

_NO_NAMES: frozenset[str] = frozenset()


class Quirks(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of server cannot take, or leaves out; the defaults are the API."""

    #: The item types that it takes as input; None: all.
    item_types: frozenset[str] | None = None
    #: The tool types that it takes; None: all.
    tool_types: frozenset[str] | None = None
    #: Parameters that it accepts and ignores, so that we refuse them.
    ignored: frozenset[str] = _NO_NAMES
    #: A reasoning item must have raw text, as a list of parts that is not empty.
    needs_reasoning_text: bool = False
    #: An assistant message must name its type, and cannot hold a refusal.
    needs_plain_messages: bool = False
    #: `tool_choice` is read as a word alone.
    choice_words: bool = False
    #: Parameters of its chat route work here, and those of the API that they stand for do not.
    chat_parameters: bool = False
    #: `stream_options.include_obfuscation` is known.
    stream_options: bool = False
    #: The model makes one item after another, though their ends may be told late or never.
    one_at_a_time: bool = False
    #: An answer that a limit cut is called completed.
    hides_cuts: bool = False
    #: Where it counts the tokens of a prompt, under the base of its API; None: nowhere.
    count_path: str | None = None


_API = Quirks(count_path="/responses/input_tokens")

#: By profile.
QUIRKS: dict[str, Quirks] = {
    "openai": Quirks(stream_options=True, count_path="/responses/input_tokens"),
    # Tried with b11549.
    "llama.cpp": Quirks(
        item_types=frozenset({"message", "reasoning", "function_call", "function_call_output"}),
        tool_types=frozenset({"function"}),
        ignored=frozenset(
            {
                "access_programs",
                "image",
                "include",
                "max_tool_calls",
                "moderation",
                "prompt",
                "reasoning.context",
                "reasoning.mode",
                "top_logprobs",
            }
        ),
        needs_reasoning_text=True,
        needs_plain_messages=True,
        choice_words=True,
        chat_parameters=True,
        one_at_a_time=True,
        hides_cuts=True,
        count_path="/responses/input_tokens",
    ),
    # From its source, 0.34.
    "ollama": Quirks(
        tool_types=frozenset({"function", "namespace", "web_search", "tool_search"}),
        ignored=frozenset(
            {
                "access_programs",
                "frequency_penalty",
                "image",
                "include",
                "max_tool_calls",
                "moderation",
                "parallel_tool_calls",
                "presence_penalty",
                "prompt",
                "reasoning.context",
                "reasoning.mode",
                "text.format",
                "tool_choice",
                "top_logprobs",
            }
        ),
        one_at_a_time=True,
        hides_cuts=True,
    ),
    # Tried with 0.32: the items of a cut answer are called completed.
    "vllm": Quirks(hides_cuts=True),
}


def find_quirks(profile_name: str) -> Quirks:
    """The quirks of a server; none for one that is not known."""
    return QUIRKS.get(profile_name, _API)
