"""What is refused by name, before a chat model and before a server that speaks Responses."""

from typing import Any

import msgspec
import pytest

from antiphon.engine.refusals import INCLUDABLE, PASSED_ON, UNSUPPORTED, has_image, refuse_unsupported
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import decode_item
from antiphon.protocol.requests import decode_create_request
from tests.unit.test_items import ALL

IMAGE = "data:image/png;base64,AA=="
#: A request for each row of the table.
ASKING: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": {"id": "pmpt_1"}},
    "moderation": {"moderation": {"model": "m"}},
    "background_options": {"background_options": {"completion_window": "2h"}},
    "image": {"image": {"context_compression": "enabled"}},
    "access_programs": {"access_programs": {"cyber": "standard"}},
    "reasoning.context": {"reasoning": {"context": "current_turn"}},
    "reasoning.mode": {"reasoning": {"mode": "pro"}},
    "prompt_cache_options.prewarm": {"prompt_cache_options": {"prewarm": True}},
    "prompt_cache_options.comparison_response_id": {
        "prompt_cache_options": {"comparison_response_id": "resp_1"}
    },
}
#: Items that a chat model cannot be told of.
UNTOLD = {
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "program",
    "program_output",
}


def judge(*, speaks_responses: bool = False, **fields: Any) -> None:
    """Refuse a request, or not."""
    body = msgspec.json.encode({"model": "m", "input": "x", **fields})
    refuse_unsupported(decode_create_request(body), speaks_responses=speaks_responses)


def find_refusal(*, speaks_responses: bool = False, **fields: Any) -> tuple[str | None, str | None]:
    """Param and code of the refusal of a request."""
    with pytest.raises(RequestError) as caught:
        judge(speaks_responses=speaks_responses, **fields)
    return caught.value.param, caught.value.code


def test_there_is_an_example_of_every_row() -> None:
    """Guards the tests below against looking at nothing."""
    assert set(ASKING) == set(UNSUPPORTED)
    assert set(UNSUPPORTED) > PASSED_ON


@pytest.mark.parametrize("param", ASKING)
def test_a_field_is_refused_unless_the_upstream_decides(param: str) -> None:
    """Ours: nothing is accepted and forgotten."""
    assert find_refusal(**ASKING[param]) == (param, "unsupported_parameter")
    if param in PASSED_ON:
        judge(speaks_responses=True, **ASKING[param])
    else:
        assert find_refusal(speaks_responses=True, **ASKING[param]) == (param, "unsupported_parameter")


@pytest.mark.parametrize(
    "fields",
    [
        {"conversation": "conv_1"},
        {"background": True},
        {"max_tool_calls": 3},
        {"truncation": "auto"},
        {"reasoning": {"context": "all_turns", "mode": "standard"}},
        {"include": sorted(INCLUDABLE)},
        {"tools": [{"type": "custom", "name": "c"}], "tool_choice": "required"},
    ],
)
def test_what_is_carried_out_passes(fields: dict[str, Any]) -> None:
    """Ours: tools are judged where the toolbox is built."""
    judge(**fields)
    judge(speaks_responses=True, **fields)


@pytest.mark.parametrize(
    "name",
    [
        "file_search_call.results",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    ],
)
def test_what_only_a_hosted_tool_gives_cannot_be_included(name: str) -> None:
    """Ours."""
    include = ["message.output_text.logprobs", name]
    assert find_refusal(include=include) == ("include[1]", "unsupported_parameter")
    judge(speaks_responses=True, include=include)


@pytest.mark.parametrize("example", ALL, ids=lambda value: str(value["type"]))
def test_an_item_passes_or_is_refused_by_its_place(example: dict[str, Any]) -> None:
    """Ours: what a chat model can be told of passes; the rest has its remedy."""
    judge(speaks_responses=True, input=[example])
    if example["type"] in UNTOLD:
        assert find_refusal(input=[{"role": "user", "content": "x"}, example]) == (
            "input[1]",
            "unsupported_parameter",
        )
    else:
        judge(input=[example])


def test_an_unknown_type_passes_where_the_upstream_may_know_it() -> None:
    """Ours: before a chat model the text lists the types that are known."""
    item = {"type": "slug:thing", "id": "x_1"}
    judge(speaks_responses=True, input=[item])
    assert find_refusal(input=[item]) == ("input[0]", "invalid_value")


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (
            {
                "type": "function_call",
                "call_id": "1",
                "name": "f",
                "arguments": "{}",
                "caller": {"type": "program", "caller_id": "p"},
            },
            "input[0].caller",
        ),
        (
            {
                "type": "agent_message",
                "content": [{"type": "encrypted_content", "encrypted_content": "x"}],
            },
            "input[0].content[0]",
        ),
        (
            {"type": "agent_message", "content": [{"type": "input_image", "image_url": "http://a.b"}]},
            "input[0].content[0]",
        ),
    ],
)
def test_what_is_sealed_or_elsewhere_in_an_item_is_refused(item: dict[str, Any], param: str) -> None:
    """Ours."""
    assert find_refusal(input=[item]) == (param, "unsupported_parameter")


def test_stream_options_need_a_stream() -> None:
    """Spec: stream_options."""
    with pytest.raises(RequestError) as caught:
        judge(stream_options={"include_obfuscation": True})
    assert caught.value.param == "stream_options"


@pytest.mark.parametrize(
    ("item", "holds"),
    [
        ({"role": "user", "content": "x"}, False),
        ({"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]}, True),
        (
            {
                "type": "custom_tool_call_output",
                "call_id": "1",
                "output": [{"type": "input_image", "image_url": IMAGE}],
            },
            True,
        ),
        ({"type": "agent_message", "content": [{"type": "input_image", "image_url": IMAGE}]}, True),
        ({"type": "shell_call_output", "call_id": "1", "output": []}, False),
    ],
)
def test_an_image_is_seen_wherever_it_stands(item: dict[str, Any], holds: bool) -> None:
    """Ours: a model that does not see images is not sent any."""
    assert has_image(decode_item(msgspec.json.encode(item), "input[0]")) is holds
