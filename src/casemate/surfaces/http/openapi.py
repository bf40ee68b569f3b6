"""The service's OpenAPI 3.1 description, made from the catalogue."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from casemate import __version__
from casemate.operations.catalogue import catalogue

if TYPE_CHECKING:
    from casemate.operations.catalogue import Operation

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["kind", "message", "remediation"],
            "properties": {
                "kind": {"type": "string", "description": "A stable word: what sort of error it is."},
                "type": {"type": "string", "description": "The class of casemate.errors that it is in Python."},
                "message": {"type": "string", "description": "What happened, to what, and why."},
                "remediation": {"type": "string", "description": "What to do about it; empty for nothing."},
                "argument": {"type": "string", "description": "Which argument is wrong, where one is."},
            },
        }
    },
}
_FAILED = {
    "description": "An error; its status is that of its kind.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_BYTES = {"description": "Bytes.", "content": {"application/octet-stream": {}}}


@cache
def describe_service() -> dict[str, Any]:
    """The whole description, made once, since the catalogue does not change."""
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths = {f"/v1/{name.replace('.', '/')}": {"post": _post(one, schemas)} for name, one in catalogue().items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "casemate", "version": __version__, "summary": "Runs code that nobody has read."},
        "security": [{"token": []}],
        "paths": {**paths, **_OTHERS},
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _post(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    answer = _lift_definitions(operation.result_schema(), schemas)
    media = "text/event-stream" if operation.streams else "application/json"
    said = "Events, each a data line of JSON; the last is named end or error." if operation.streams else "The result."
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": operation.description,
        "tags": [operation.name.rpartition(".")[0] or "sandbox"],
        "x-audience": str(operation.audience),
        "requestBody": {
            "content": {"application/json": {"schema": _lift_definitions(operation.params_schema(), schemas)}}
        },
        "responses": {"200": {"description": said, "content": {media: {"schema": answer}}}, "default": _FAILED},
    }


def _lift_definitions(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """``schema`` with its definitions moved to ``schemas``."""
    for name, one in schema.pop("$defs", {}).items():
        schemas.setdefault(name, _point_to_components(one))
    return dict(_point_to_components(schema))


def _point_to_components(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: one.replace("#/$defs/", "#/components/schemas/")
            if name == "$ref" and isinstance(one, str) else _point_to_components(one)
            for name, one in value.items()
        }  # fmt: skip
    if isinstance(value, list):
        return [_point_to_components(one) for one in value]
    return value


def _get(name: str, summary: str, *parameters: str) -> dict[str, Any]:
    given = [{"name": one, "in": "path", "required": True, "schema": {"type": "string"}} for one in parameters]
    answers = {"200": _BYTES, "default": _FAILED}
    return {"get": {"operationId": name, "summary": summary, "parameters": given, "responses": answers}}


_HANDLE = {"type": "object", "properties": {"handle": {"type": "string"}}, "required": ["handle"]}
_OTHERS: dict[str, Any] = {
    "/v1/uploads": {
        "put": {
            "operationId": "uploads.put",
            "summary": "Upload a file in advance; arguments can name its handle for an hour.",
            "requestBody": {"content": {"application/octet-stream": {}}},
            "responses": {
                "200": {"description": "Its handle.", "content": {"application/json": {"schema": _HANDLE}}},
                "default": _FAILED,
            },
        }
    },
    "/v1/artifacts/{run}/{name}": _get("artifacts.get", "The bytes of a run's artifact.", "run", "name"),
    "/v1/files/{session}/{path}": _get("files.get", "The bytes of a file in a session's workspace.", "session", "path"),
    "/v1/archives/{handle}": _get("archives.get", "The bytes of an archive that was packed.", "handle"),
    "/v1/health": {
        "get": {
            "operationId": "health",
            "summary": "Whether the service takes work; more for authenticated clients.",
            "security": [{}, {"token": []}],
            "responses": {"200": {"description": "It does."}, "503": {"description": "It is ending."}},
        }
    },
}
