"""The OpenAPI document of this server: what it serves now, and nothing else.

Paths come from the routes' specifications, schemas from the structs that requests and answers are made of.
It knows no engine.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from antiphon import __version__
from antiphon.protocol.compact_request import describe_compact_request
from antiphon.protocol.count_request import describe_count_request
from antiphon.protocol.errors import ErrorObject
from antiphon.protocol.request_schema import describe_create_request
from antiphon.protocol.responses import Response
from antiphon.server.route import Query, RouteSpec


class ErrorBody(msgspec.Struct):
    """What every error answer holds."""

    error: ErrorObject


_PREFIX = "#/components/schemas/"
#: What any route may answer.
_COMMON_ERRORS = ("400", "401", "403", "405", "500")
_BODY_ERRORS = ("413", "415")


def render_openapi(specs: Sequence[RouteSpec]) -> bytes:
    """The document as JSON."""
    structs: set[type[msgspec.Struct]] = {Response, ErrorBody}
    structs |= {spec.answer for spec in specs if spec.answer is not None}
    structs |= {spec.body for spec in specs if isinstance(spec.body, type)}
    ordered = sorted(structs, key=lambda struct: struct.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=_PREFIX + "{name}")
    create, create_components = describe_create_request(_PREFIX + "{name}")
    count, count_components = describe_count_request(_PREFIX + "{name}")
    compact, compact_components = describe_compact_request(_PREFIX + "{name}")
    components = {**components, **create_components, **count_components, **compact_components}
    components |= {"CreateRequest": create, "CountRequest": count, "CompactRequest": compact}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Antiphon",
            "version": __version__,
            "description": "The stateful Responses API in front of any model server.",
        },
        "paths": {"/v1/responses": {"post": _create_operation()}, **_list_paths(specs)},
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }
    return msgspec.json.encode(document)


def _create_operation() -> dict[str, Any]:
    return {
        "operationId": "createResponse",
        "summary": "Create a response, or stream one.",
        "requestBody": _describe_body("CreateRequest", required=True),
        "responses": {
            "200": {
                "description": "The response; server-sent events when `stream` is true.",
                "content": _describe_content("Response", streams=True),
            },
            **_describe_errors(
                (*_COMMON_ERRORS, *_BODY_ERRORS, "404", "426", "429", "502", "503", "504"),
            ),
        },
    }


def _list_paths(specs: Iterable[RouteSpec]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for spec in specs:
        paths.setdefault(spec.path.replace(":path}", "}"), {})[spec.method.lower()] = _describe(spec)
    return paths


def _describe(spec: RouteSpec) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": spec.name,
        "summary": spec.summary,
        "parameters": [*_list_path_parameters(spec.path), *map(_describe_query, spec.query)],
    }
    errors = (*_COMMON_ERRORS, *spec.errors)
    if spec.body is not None:
        name = spec.body if isinstance(spec.body, str) else spec.body.__name__
        operation["requestBody"] = _describe_body(name, required=not spec.body_optional)
        errors += _BODY_ERRORS
    answer = spec.answer.__name__ if spec.answer is not None else None
    operation["responses"] = {
        "200": {"description": spec.summary, "content": _describe_content(answer, streams=spec.streams)},
        **_describe_errors(errors),
    }
    if spec.open:
        operation["security"] = []
    if spec.ours:
        operation["x-antiphon"] = True
    return operation


def _describe_body(name: str, *, required: bool) -> dict[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": {"$ref": _PREFIX + name}}}}


def _describe_content(answer: str | None, *, streams: bool) -> dict[str, Any]:
    schema: dict[str, Any] = {"$ref": _PREFIX + answer} if answer is not None else {"type": "object"}
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content


def _describe_errors(statuses: Iterable[str]) -> dict[str, Any]:
    body = {"application/json": {"schema": {"$ref": _PREFIX + "ErrorBody"}}}
    return {status: {"description": "An error.", "content": body} for status in sorted(set(statuses))}


def _list_path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1].partition(":")[0] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _describe_query(query: Query) -> dict[str, Any]:
    return {"name": query.name, "in": "query", "required": False, "schema": query.schema}
