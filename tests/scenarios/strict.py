"""Everything that the server emits, held against the official `openai` package's models, strictly.

Strict means: no coercion, no key that the model does not have, every required key there. The exceptions
stand in this file and nowhere else. It knows no scenario. Invariant: a fault is an `AssertionError` that
names the place.
"""

import json
from collections.abc import Mapping
from typing import Any, get_args

import openai.types
import openai.types.responses as sdk
from openai.types import conversations
from openai.types.beta import BetaResponseItem
from pydantic import BaseModel, TypeAdapter, ValidationError

#: Keys of the Response that the package's types do not have: ours, and three that the API itself sends.
EXTRA_RESPONSE_KEYS = frozenset({"antiphon", "store", "presence_penalty", "frequency_penalty"})
#: Codes of `response.error` that the package's enum does not have.
EXTRA_ERROR_CODES = frozenset(
    {"context_length_exceeded", "insufficient_quota", "server_is_overloaded", "compaction_failed"}
)
#: What our own response key may hold.
EXTENSION_KEYS = frozenset(
    {"warnings", "usage_untold", "dropped", "dropped_count", "dropped_tokens", "compaction"}
)
#: What each compaction pass tells, and what it may tell.
PASS_KEYS = frozenset(
    {"reason", "rungs", "tokens_before", "tokens_after", "model_calls", "repairs", "summary", "removed"}
    | {"removed_count", "removed_tokens"}
)
OPTIONAL_PASS_KEYS = frozenset({"reused", "usage", "omitted", "kept_by_client", "refused"})
#: Keys that the API always sends, although the package's types allow their absence.
ALWAYS_SENT = frozenset(
    [
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "background",
        "error",
        "incomplete_details",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
        "output",
        "parallel_tool_calls",
        "presence_penalty",
        "frequency_penalty",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "usage",
        "user",
    ]
)
_ERROR_KEYS = {"message", "type", "param", "code"}
_ERROR_TYPES = {"invalid_request_error", "server_error", "rate_limit_error"}


def _by_type(union: Any) -> dict[str, type[BaseModel]]:
    """The members of a discriminated union by their `type`."""
    members: dict[str, type[BaseModel]] = {}
    for model in get_args(get_args(union)[0]):
        for name in get_args(model.model_fields["type"].annotation):
            members[name] = model
    return members


EVENTS = _by_type(sdk.ResponseStreamEvent)
#: The items of the beta, and over them the stable ones: a message between agents is of the beta alone.
_LISTED_ITEMS = {
    name: model
    for union in (BetaResponseItem, sdk.ResponseItem)
    for name, model in _by_type(union).items()
    if name != "message"
}


def check_response(members: Mapping[str, Any], where: str = "response") -> None:
    """A whole Response object."""
    missing = ALWAYS_SENT - set(members)
    assert not missing, f"{where}: keys are missing: {sorted(missing)}"
    assert type(members["store"]) is bool, f"{where}.store: {members['store']!r}"
    for key in ("presence_penalty", "frequency_penalty"):
        assert type(members[key]) in (int, float), f"{where}.{key}: {members[key]!r}"
    for key in ("created_at", "completed_at"):
        assert members[key] is None or type(members[key]) is int, f"{where}.{key}: {members[key]!r}"
    _check(sdk.Response, _strip_response(members), where)
    for position, item in enumerate(members["output"]):
        check_output_item(item, f"{where}.output[{position}]")
    if "antiphon" in members:
        _check_extension(members["antiphon"], where)
    _check_status(members, where)


def check_event(members: Mapping[str, Any]) -> None:
    """One event of a stream."""
    kind = members.get("type")
    assert isinstance(kind, str), f"an event without a type: {members!r}"
    assert type(members.get("sequence_number")) is int, f"{kind}: no sequence number"
    if kind == "error":
        # The API nests what the package's class has flat.
        assert set(members) == {"type", "sequence_number", "error"}, f"error event: {members!r}"
        check_error_object(members["error"], "error event")
        return
    assert kind in EVENTS, f"{kind} is no event of the package"
    rest = dict(members)
    if "response" in rest:
        check_response(rest["response"], kind)
        # Checked; what it must still be here is some valid Response.
        rest["response"] = _strip_response(rest["response"])
    if "item" in rest:
        check_output_item(rest["item"], f"{kind}.item")
        rest["item"] = strip_item(rest["item"])
    if kind.endswith(".delta") and "obfuscation" in rest:
        # An undocumented-in-types key of every delta, sent only when it was asked for.
        assert isinstance(rest.pop("obfuscation"), str)
    _check(EVENTS[kind], rest, kind)


def check_output_item(members: Mapping[str, Any], where: str = "item") -> None:
    """An item of an output."""
    _check(sdk.ResponseOutputItem, strip_item(members), where)
    assert members.get("id"), f"{where} has no id"


def strip_item(members: Mapping[str, Any]) -> dict[str, Any]:
    """The item without the exceptions among items; what they hold is checked here.

    A custom call that was cut off says so (the API's own items all have a status); a web search has the `results`
    that `include` can ask for.
    """
    rest = strip_results(members)
    if members.get("type") == "custom_tool_call" and "status" in members:
        assert rest.pop("status") == "incomplete", f"a custom call with a status: {members!r}"
    return rest


def strip_results(members: Mapping[str, Any]) -> dict[str, Any]:
    """The item without what a web search found."""
    rest = dict(members)
    if members.get("type") == "web_search_call" and "results" in members:
        for hit in rest.pop("results"):
            assert set(hit) == {"url", "title", "snippet"}, hit
    return rest


def check_listed_item(members: Mapping[str, Any], where: str = "data") -> None:
    """An item of a list."""
    kind = members.get("type")
    if kind == "message":
        model: Any = (
            sdk.ResponseOutputMessage if members.get("role") == "assistant" else sdk.ResponseInputMessageItem
        )
    else:
        assert kind in _LISTED_ITEMS, f"{where}: no item of the package is a {kind!r}"
        model = _LISTED_ITEMS[str(kind)]
    _check(model, strip_results(members), where)


def check_page(members: Mapping[str, Any], echoed: frozenset[str] = frozenset()) -> None:
    """A page of items; `echoed` are keys that the client itself put into them.

    On an empty page the API's ids are null, where the package's type says string.
    """
    assert set(members) == {"object", "data", "first_id", "last_id", "has_more"}, sorted(members)
    assert members["object"] == "list"
    assert type(members["has_more"]) is bool
    data = members["data"]
    for position, item in enumerate(data):
        rest = {key: value for key, value in item.items() if key not in echoed}
        check_listed_item(rest, f"data[{position}]")
    ends = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    assert (members["first_id"], members["last_id"]) == ends
    assert data or not members["has_more"]


def check_conversation(members: Mapping[str, Any], *, deleted: bool = False) -> None:
    """A conversation, or the news that it was deleted."""
    if deleted:
        _check(conversations.ConversationDeletedResource, members, "conversation")
        assert set(members) == {"id", "object", "deleted"}, sorted(members)
        assert members["deleted"] is True
    else:
        _check(conversations.Conversation, members, "conversation")
        assert set(members) == {"id", "object", "created_at", "metadata"}, sorted(members)


def check_count(members: Mapping[str, Any]) -> None:
    """The answer of `input_tokens`; ours says where it is an estimate."""
    rest = dict(members)
    assert rest.pop("antiphon", {"estimated": True}) == {"estimated": True}
    _check(sdk.InputTokenCountResponse, rest, "input_tokens")


def check_compacted(members: Mapping[str, Any]) -> None:
    """A window made smaller: user messages, which the package's class does not foresee, then one compaction item."""
    rest = {key: members[key] for key in members if key != "antiphon"}
    *messages, last = members["output"]
    for position, item in enumerate(messages):
        check_listed_item(item, f"output[{position}]")
        assert (item["type"], item["role"]) == ("message", "user"), f"output[{position}]: {item!r}"
    assert last["type"] == "compaction", f"the last item of the output is {last!r}"
    assert type(members["created_at"]) is int, f"created_at: {members['created_at']!r}"
    _check(sdk.CompactedResponse, {**rest, "output": [last]}, "compacted")
    ids = [item["id"] for item in members["output"]]
    assert len(ids) == len(set(ids)), f"an id stands twice in the output: {ids}"


def check_window(members: Mapping[str, Any]) -> None:
    """Our own report: every item of the path, with tokens where it was shown and a reason where it was not.

    A dropped one has the tokens that its response told.
    """
    assert members["object"] == "response.window"
    shown = [row for row in members["items"] if row["shown"]]
    told = sum(row["tokens"] for row in (*members["parts"], *shown))
    dropped = {row["id"]: row["tokens"] for row in members["dropped"]}
    assert told <= max(members["input_tokens"]["counted"], members["input_tokens"]["reported"] or 0)
    for row in members["items"]:
        assert row["shown"] == ("reason" not in row), row
        assert row["shown"] or row["tokens"] == dropped.get(row["id"], 0), row


def check_models(members: Mapping[str, Any]) -> None:
    """The list of models."""
    assert set(members) == {"object", "data"}, sorted(members)
    assert members["object"] == "list"
    for model in members["data"]:
        check_model(model)


def check_model(members: Mapping[str, Any]) -> None:
    """One model; what is known of it stands under our own key."""
    _check(openai.types.Model, {key: members[key] for key in members if key != "antiphon"}, "model")


def check_deleted(members: Mapping[str, Any]) -> None:
    """The answer to a deletion."""
    assert set(members) == {"id", "object", "deleted"}, sorted(members)
    assert members["object"] == "response"
    assert members["deleted"] is True


def check_error(members: Mapping[str, Any]) -> None:
    """The body of an error answer."""
    assert set(members) == {"error"}, sorted(members)
    check_error_object(members["error"], "error")


def check_error_object(error: Any, where: str) -> None:
    """The four keys of an error, all there."""
    assert isinstance(error, dict), f"{where}: {error!r}"
    assert set(error) == _ERROR_KEYS, f"{where}: {sorted(error)}"
    assert isinstance(error["message"], str)
    assert error["message"], f"{where} says nothing"
    assert error["type"] in _ERROR_TYPES, f"{where}.type: {error['type']!r}"
    for key in ("param", "code"):
        assert error[key] is None or isinstance(error[key], str), f"{where}.{key}: {error[key]!r}"


def find_extra_keys(value: Any, where: str) -> list[str]:
    """Every key in a validated model that its class does not have, by path."""
    if isinstance(value, BaseModel):
        found = [f"{where}.{key}" for key in value.model_extra or {}]
        for name in type(value).model_fields:
            found += find_extra_keys(getattr(value, name), f"{where}.{name}")
        return found
    if isinstance(value, list):
        return [path for at, member in enumerate(value) for path in find_extra_keys(member, f"{where}[{at}]")]
    return []


_ADAPTERS: dict[int, TypeAdapter[Any]] = {}


def _check(model: Any, members: Mapping[str, Any], where: str) -> None:
    adapter = _ADAPTERS.get(id(model))
    if adapter is None:
        adapter = _ADAPTERS[id(model)] = TypeAdapter(model)
    try:
        value = adapter.validate_json(json.dumps(members), strict=True)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:12])
        raise AssertionError(f"{where} is not what the package's {model} allows: {told}\n{members}") from None
    extra = find_extra_keys(value, where)
    assert not extra, f"keys that the package does not know: {extra}"


def _strip_response(members: Mapping[str, Any]) -> dict[str, Any]:
    """The response without the exceptions: what is left must fit."""
    rest = {key: value for key, value in members.items() if key not in EXTRA_RESPONSE_KEYS}
    rest["output"] = [strip_item(item) for item in rest["output"]]
    error = rest["error"]
    if isinstance(error, dict) and error.get("code") in EXTRA_ERROR_CODES:
        rest["error"] = {**error, "code": "server_error"}
    return rest


def _check_extension(extension: Any, where: str) -> None:
    assert isinstance(extension, dict), f"{where}.antiphon: {extension!r}"
    assert extension, f"{where}.antiphon is empty; then it is absent"
    assert set(extension) <= EXTENSION_KEYS, f"{where}.antiphon: {sorted(extension)}"
    if "compaction" in extension:
        assert set(extension["compaction"]) == {"passes"}, extension["compaction"]
        assert extension["compaction"]["passes"], f"{where}.antiphon.compaction tells of no pass"
        for each in extension["compaction"]["passes"]:
            assert set(each) >= PASS_KEYS, f"{where}: a pass without {sorted(PASS_KEYS - set(each))}"
            assert set(each) <= PASS_KEYS | OPTIONAL_PASS_KEYS, f"{where}: a pass with {sorted(each)}"
            assert each["removed_count"] >= len(each["removed"])
    for warning in extension.get("warnings", []):
        assert set(warning) == {"code", "message"}
        assert warning["code"]
        assert warning["message"]


def _check_status(members: Mapping[str, Any], where: str) -> None:
    """What a status says about the other keys."""
    status = members["status"]
    assert (members["completed_at"] is not None) == (status == "completed"), f"{where}: completed_at"
    assert (members["error"] is not None) == (status == "failed"), f"{where}: error of a {status} response"
    # A background response that is read while it runs shows the items that are done.
    if status == "queued" or (status == "in_progress" and not members["background"]):
        assert members["output"] == [], f"{where}: output before the end"
    if status in ("queued", "in_progress", "failed", "cancelled"):
        assert members["usage"] is None, f"{where}: usage of a {status} response"
    if status == "completed":
        kinds = {item["type"] for item in members["output"]}
        assert kinds - {"reasoning"}, f"{where}: completed without an answer"
    if status != "incomplete":
        assert members["incomplete_details"] is None, f"{where}: incomplete_details of a {status} response"
