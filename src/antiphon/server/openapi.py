"""The OpenAPI document of this server: what it serves now, and nothing else.

Schemas come from the structs that requests and answers are made of. It knows no engine.
"""

from typing import Any

import msgspec

from antiphon import __version__
from antiphon.protocol.errors import ErrorObject
from antiphon.protocol.request_schema import describe_create_request
from antiphon.protocol.responses import DeletedResponse, ListPage, ModelList, ModelObject, Response


class ErrorBody(msgspec.Struct):
    """What every error answer holds."""

    error: ErrorObject


class Status(msgspec.Struct):
    """Whether the server is up, or ready."""

    status: str


_PREFIX = "#/components/schemas/"
_ANSWERS: dict[str, type[msgspec.Struct]] = {
    "Response": Response,
    "DeletedResponse": DeletedResponse,
    "ListPage": ListPage,
    "ModelList": ModelList,
    "ModelObject": ModelObject,
    "ErrorBody": ErrorBody,
    "Status": Status,
}


def render_openapi() -> bytes:
    """The document as JSON."""
    _, components = msgspec.json.schema_components(list(_ANSWERS.values()), ref_template=_PREFIX + "{name}")
    request, request_components = describe_create_request(_PREFIX + "{name}")
    components = {**components, **request_components, "CreateRequest": request}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Antiphon",
            "version": __version__,
            "description": "The stateful Responses API in front of any model server.",
        },
        "paths": _list_paths(),
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }
    return msgspec.json.encode(document)


def _list_paths() -> dict[str, Any]:
    response_id = _parameter("response_id", "path", {"type": "string"})
    return {
        "/v1/responses": {
            "post": {
                "operationId": "createResponse",
                "summary": "Create a response, or stream one.",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": _PREFIX + "CreateRequest"}}},
                },
                "responses": {
                    "200": {
                        "description": "The response; server-sent events when `stream` is true.",
                        "content": {
                            "application/json": {"schema": {"$ref": _PREFIX + "Response"}},
                            "text/event-stream": {"schema": {"type": "string"}},
                        },
                    },
                    **_errors("400", "401", "403", "405", "413", "415", "426", "429", "500", "502", "504"),
                },
            }
        },
        "/v1/responses/{response_id}": {
            "get": _operation(
                "retrieveResponse", "Read a stored response.", "Response", "404", [response_id]
            ),
            "delete": _operation(
                "deleteResponse", "Delete a response.", "DeletedResponse", "404", [response_id]
            ),
        },
        "/v1/responses/{response_id}/input_items": {
            "get": _operation(
                "listInputItems",
                "The items that a response answered, newest first unless asked otherwise.",
                "ListPage",
                "404",
                [
                    response_id,
                    _parameter(
                        "limit", "query", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}
                    ),
                    _parameter(
                        "order", "query", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}
                    ),
                    _parameter("after", "query", {"type": "string"}),
                ],
            )
        },
        "/v1/models": {
            "get": _operation("listModels", "The models that requests may name.", "ModelList", "502", [])
        },
        "/v1/models/{model}": {
            "get": _operation(
                "retrieveModel",
                "One model.",
                "ModelObject",
                "404",
                [_parameter("model", "path", {"type": "string"})],
            )
        },
        "/health": {"get": _operation("getHealth", "Whether the server is up.", "Status", "500", [])},
        "/ready": {
            "get": _operation("getReady", "Whether a response could be stored now.", "Status", "500", [])
        },
    }


def _operation(
    name: str, summary: str, answer: str, error: str, parameters: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {
                "description": summary,
                "content": {"application/json": {"schema": {"$ref": _PREFIX + answer}}},
            },
            **_errors("400", "401", "403", "405", error),
        },
    }


def _errors(*statuses: str) -> dict[str, Any]:
    body = {"application/json": {"schema": {"$ref": _PREFIX + "ErrorBody"}}}
    return {status: {"description": "An error.", "content": body} for status in statuses}


def _parameter(name: str, place: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}
