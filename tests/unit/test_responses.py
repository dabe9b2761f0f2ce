"""The Response object, lists, deletions and models validate strictly in the official package's types."""

import msgspec
from openai.types import Model as OfficialModel
from openai.types.responses import Response as OfficialResponse

from antiphon.protocol.responses import (
    ConversationEcho,
    DeletedResponse,
    IncompleteDetails,
    InputTokensDetails,
    ListPage,
    ModelList,
    ModelObject,
    OutputTokensDetails,
    Response,
    Usage,
)

#: What Open Responses requires of every response object.
REQUIRED = frozenset(
    [
        *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model"),
        *("previous_response_id", "instructions", "output", "error", "tools", "tool_choice", "truncation"),
        *("parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"),
        *("temperature", "reasoning", "usage", "max_output_tokens", "max_tool_calls", "store", "background"),
        *("service_tier", "metadata", "safety_identifier", "prompt_cache_key"),
    ]
)
MESSAGE = msgspec.Raw(
    b'{"id":"msg_1","type":"message","role":"assistant","status":"completed",'
    b'"content":[{"type":"output_text","text":"hi","annotations":[],"logprobs":[]}]}'
)


def test_a_fresh_response_has_every_required_key_and_nothing_unset() -> None:
    """Spec: the Response object; Open Responses ResponseResource."""
    body = msgspec.json.encode(Response(id="resp_1", created_at=1, status="in_progress", model="m"))
    shown = msgspec.json.decode(body)
    assert set(shown) == REQUIRED | {"prompt_cache_retention", "user"}
    assert shown["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    numbers = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs")
    assert [shown[name] for name in numbers] == [1.0, 1.0, 0.0, 0.0, 0]
    OfficialResponse.model_validate_json(body, strict=True)


def test_a_full_response_validates_strictly() -> None:
    """Spec: the Response object."""
    response = Response(
        id="resp_1",
        created_at=1,
        completed_at=2,
        status="incomplete",
        model="m",
        output=[MESSAGE],
        incomplete_details=IncompleteDetails("max_output_tokens"),
        error={"code": "server_error", "message": "x"},
        usage=Usage(
            input_tokens=3,
            input_tokens_details=InputTokensDetails(cached_tokens=1),
            output_tokens=2,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=1),
            total_tokens=5,
        ),
        conversation=ConversationEcho("conv_1"),
        antiphon={"usage_untold": ["reasoning_tokens"]},
    )
    body = msgspec.json.encode(response)
    official = OfficialResponse.model_validate_json(body, strict=True)
    assert official.output_text == "hi"
    assert official.usage is not None
    assert official.usage.to_dict() == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 5,
    }
    assert msgspec.json.decode(body)["antiphon"] == {"usage_untold": ["reasoning_tokens"]}
    assert official.conversation is not None
    assert official.conversation.id == "conv_1"


def test_an_empty_page_has_null_ids() -> None:
    """Spec: lists, measured live."""
    assert msgspec.json.encode(ListPage()) == (
        b'{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}'
    )


def test_a_deletion_and_models_have_the_api_s_shape() -> None:
    """Spec: endpoints."""
    assert msgspec.to_builtins(DeletedResponse("resp_1")) == {
        "id": "resp_1",
        "object": "response",
        "deleted": True,
    }
    model = ModelObject("m", created=5, owned_by="us")
    OfficialModel.model_validate_json(msgspec.json.encode(model), strict=True)
    assert msgspec.to_builtins(ModelList(data=[model])) == {
        "object": "list",
        "data": [{"id": "m", "object": "model", "created": 5, "owned_by": "us"}],
    }
