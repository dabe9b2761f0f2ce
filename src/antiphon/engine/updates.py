"""Settings that an item changes from its place on: `configuration_update`.

It knows the request and the items of its path. Invariants: what the request itself says wins; of several updates the
last one that says something of a setting.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from antiphon.protocol import checks
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import ConfigurationUpdate, Item
from antiphon.protocol.requests import CreateRequest, ReasoningConfig, decode_text_config

_encode = msgspec.json.Encoder().encode
#: What an update may change, by the API.
_CHANGED = {"reasoning": ("effort",), "text": ("format",)}


def apply_updates(request: CreateRequest, path: Iterable[Item]) -> list[tuple[str, str]]:
    """Fill in what the request leaves out and an update on its path, or in its input, says.

    Raises `RequestError` for an update of the input that is wrong; one of the path, which another server took, is
    left out with a warning.
    """
    says_effort = request.reasoning is not None and request.reasoning.effort is not None
    says_format = request.text.format.type != "text"
    sent = [item for item in request.input if isinstance(item.value, ConfigurationUpdate)]
    if sent:
        _check_input(request.input)
    warnings: dict[tuple[str, str], None] = {}
    for item in path:
        if isinstance(item.value, ConfigurationUpdate):
            try:
                _fill(request, item.value, fills_effort=not says_effort, fills_format=not says_format)
            except RequestError as error:
                text = f"An earlier configuration_update cannot be carried out and has no effect: {error.message}"
                warnings[("transcript", text)] = None
    for item in sent:
        if isinstance(item.value, ConfigurationUpdate):
            _fill(request, item.value, fills_effort=not says_effort, fills_format=not says_format)
    return list(warnings)


def _check_input(items: Sequence[Item]) -> None:
    before = False
    for position, item in enumerate(items):
        value = item.value
        is_update = isinstance(value, ConfigurationUpdate)
        if is_update and before:
            raise RequestError("Consecutive 'configuration_update' items are not allowed.", param="input")
        before = is_update
        if not isinstance(value, ConfigurationUpdate):
            continue
        for name, allowed in _CHANGED.items():
            for key in getattr(value, name) or {}:
                if key not in allowed:
                    raise checks.unknown_parameter(f"input[{position}].{name}", key, allowed, ())
        _read_effort(value, f"input[{position}]")
        _read_format(value)


def _fill(
    request: CreateRequest, update: ConfigurationUpdate, *, fills_effort: bool, fills_format: bool
) -> None:
    effort, chosen = _read_effort(update, "input"), _read_format(update)
    if effort is not None and fills_effort:
        request.reasoning = msgspec.structs.replace(request.reasoning or ReasoningConfig(), effort=effort)
    if chosen is not None and fills_format:
        request.text = msgspec.structs.replace(request.text, format=chosen)


def _read_effort(update: ConfigurationUpdate, where: str) -> Any:
    told = update.reasoning or {}
    try:
        return msgspec.convert({"effort": told.get("effort")}, ReasoningConfig).effort
    except msgspec.ValidationError as error:
        checks.refuse(_encode({"effort": told.get("effort")}), ReasoningConfig, f"{where}.reasoning", error)


def _read_format(update: ConfigurationUpdate) -> Any:
    told = (update.text or {}).get("format")
    return decode_text_config(msgspec.Raw(_encode({"format": told}))).format if told is not None else None
