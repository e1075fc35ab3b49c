"""The OpenAPI document of the gateway, made from its routes and structs, and the page of it.

The document says what every route takes, answers and refuses. The page is made here, without a
script and without anything from elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_origin

import msgspec
from aiohttp import web

from skep import __version__
from skep.wire import codec
from skep.wire.reasons import TEXT
from skep_services.gateway.answers import ErrorAnswer
from skep_services.gateway.operations import (
    CHOICES,
    OPERATIONS,
    PATH,
    PATH_TEXTS,
    TAGS,
    Operation,
    Parameter,
    Schema,
)

DOCUMENT_PATH = "/v1/openapi.json"
PAGE_PATH = "/v1/docs"
SCHEMAS = "#/components/schemas/"

STATUS_TEXTS = {
    400: "A part of the request is wrong.",
    401: "There is no token, or one that is not known.",
    403: "The caller has no right to it.",
    404: "There is no such thing, or the caller may not know of it.",
    408: "The body did not come in time.",
    409: "It cannot be done as things are.",
    413: "The body is too large.",
    422: "What is in the body is wrong; `problems` has every place.",
    429: "The caller asks too much at once; `retry_after_s` says when to ask again.",
    501: "That is not built.",
    502: "The provider, or a replica, does not answer as it should.",
    503: "The gateway or the bus cannot do it now: repeat it with the same key.",
}
ERROR_EXAMPLES: dict[int, tuple[str, str]] = {
    400: ("bad-value", "`limit` must be a number of 0 or more"),
    401: ("unauthorized", "a token is needed: Authorization: Bearer TOKEN"),
    403: ("wrong-vc", "this token is for VC vision, not nlp"),
    404: ("unknown-job", "there is no job j17"),
    408: ("slow", "the body did not come within 10 s"),
    409: ("already-ended", "j17 has already ended: succeeded"),
    413: ("too-large", "a spec has at most 65536 bytes"),
    422: ("bad-value", "`resources.gpus` must be 1 to 16"),
    429: (
        "too-many-requests",
        "vc-nlp makes more than 200 requests a second: repeat it after 0.1 s",
    ),
    501: ("not-built", "connections to services by WebSocket are not built yet"),
    502: ("provider", "the provider does not answer"),
    503: ("bus-away", "the bus did not take it within 10 s: repeat it with the same key"),
}


def document() -> dict[str, Any]:
    """Return the document."""
    kinds = {**{_name(kind): kind for kind in _structs()}, "ErrorAnswer": ErrorAnswer}
    _, schemas = msgspec.json.schema_components(kinds.values(), ref_template=SCHEMAS + "{name}")
    # A search gives its trials a name and its own VC, and so does a service its replicas.
    for whole, job in (("SearchSpec", "SearchJob"), ("ServiceSpec", "ReplicaJob")):
        schemas[job] = {key: each for key, each in schemas["JobSpec"].items() if key != "required"}
        schemas[whole]["properties"]["job"] = {"$ref": SCHEMAS + job}
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Skep",
            "version": __version__,
            "description": "What the gateway of a Skep cluster takes and answers. Instants are "
            "Unix nanoseconds. A refusal is an `ErrorAnswer`; its `reason` is a stable code.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [
            {
                "url": "{gateway}",
                "description": "The gateway: what `SKEP_API` has.",
                "variables": {"gateway": {"default": "http://127.0.0.1:8470"}},
            }
        ],
        "security": [{"token": []}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": {name: _portable(schema) for name, schema in sorted(schemas.items())},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the cluster's file, or one of a person.",
                }
            },
            "responses": {str(status): _error(status) for status in STATUS_TEXTS},
        },
        "x-reasons": {reason.value: text for reason, text in TEXT.items()},
    }


def _structs() -> Iterator[Any]:
    for operation in OPERATIONS.values():
        yield from (each for each in (operation.answer, operation.body) if _is_struct(each))


def _is_struct(kind: Any) -> bool:
    # `dict[str, Any]` is an instance of `type` to the eye, and no class to `issubclass`.
    return get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _operation(
    method: str, path: str, operation: Operation, schemas: dict[str, Any]
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": _identity(method, path),
        "tags": [operation.tag],
        "summary": operation.text,
        "parameters": [_parameter(each) for each in (*_in_path(path), *operation.takes)],
        "responses": _responses(operation),
    }
    if operation.open:
        made["security"] = []
    if operation.body is not None:
        schema = _body(path, operation, schemas)
        made["requestBody"] = {
            "required": operation.body_needed,
            "content": {"application/json": {"schema": schema, "example": operation.example}},
        }
    return made


def _identity(method: str, path: str) -> str:
    """Return the name of an operation: `get_jobs_job_why`."""
    words = [word for word in re.split(r"\W+", path.removeprefix("/v1")) if word]
    return "_".join((method.lower(), *(words or ["page"])))


def _in_path(path: str) -> Iterator[Parameter]:
    for name in re.findall(r"\{(\w+)\}", path):
        schema = {"type": "string", "enum": list(CHOICES[path])} if name == "do" else PATH[name]
        yield Parameter(name, schema, PATH_TEXTS[name], "path")


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.text,
        "schema": parameter.schema,
    }


def _body(path: str, operation: Operation, schemas: dict[str, Any]) -> Schema:
    if operation.tag != "changes":
        return {"$ref": SCHEMAS + _name(operation.body)}
    # What a change is of is in the path; the rest is its body, which is closed.
    whole = schemas[_name(operation.body)]
    apart = ("ask", "job")
    made = {
        "type": "object",
        "description": whole.get("description", ""),
        "properties": {
            key: _portable(value) for key, value in whole["properties"].items() if key not in apart
        },
        "additionalProperties": False,
    }
    required = [key for key in whole["required"] if key not in apart]
    return made | ({"required": required} if required else {})


def _responses(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {operation.media: {}}
    if operation.answer is not None:
        schema, example = _answer(operation.answer)
        content = {operation.media: {"schema": schema, "example": example}}
    elif operation.media.startswith("text/"):
        content = {operation.media: {"schema": {"type": "string"}}}
    done = {
        str(status): {"description": "Done.", "content": content}
        for status in (operation.status, *operation.more_status)
    }
    common = () if operation.open else (401, 403, 429)
    refused = sorted({*common, *operation.errors})
    return {
        **done,
        **{str(status): {"$ref": f"#/components/responses/{status}"} for status in refused},
    }


def _answer(kind: Any) -> tuple[Schema, Any]:
    if not _is_struct(kind):
        return {"type": "object"}, {}
    return {"$ref": SCHEMAS + kind.__name__}, example(kind)


def _error(status: int) -> dict[str, Any]:
    reason, text = ERROR_EXAMPLES[status]
    body = {"error": {"reason": reason, "text": text, "problems": []}}
    return {
        "description": STATUS_TEXTS[status],
        "content": {
            "application/json": {
                "schema": {"$ref": SCHEMAS + "ErrorAnswer"},
                "example": body | ({"retry_after_s": 0.1} if status == 429 else {}),
            }
        },
    }


def _portable(schema: Any) -> Any:
    """Return a schema whose patterns readers in other languages understand.

    Behind `$` stands what only Python needs: there a `$` also fits before a last line end.
    """
    if isinstance(schema, dict):
        return {
            key: value.replace("(?!\\n)", "") if key == "pattern" else _portable(value)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_portable(each) for each in schema]
    return schema


# --- examples ------------------------------------------------------------------------------------

EXAMPLES: dict[str, Any] = {
    "job": "j17",
    "search": "s4",
    "service": "v4",
    "vc": "nlp",
    "node": "node-1",
    "name": "mnist",
    "owner": "ann",
    "person": "ann",
    "state": "running",
    "place": "node-1:0,1",
    "gpu_type": "a100",
    "accepted": True,
    "ok": True,
    "version": __version__,
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "span_id": "00f067aa0ba902b7",
    "service_class": "guaranteed",
    "text": "what this is, in one line",
    "reason": "best-fit-one-node",
}
"""What a field has in examples, where its type allows for it."""
INSTANT_EXAMPLE = 1_790_000_000_000_000_000


def example(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return an example of a struct: the least that it may hold, and known words."""
    made: dict[str, Any] = {}
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        if field.required or field.encode_name in EXAMPLES:
            made[field.encode_name] = _example_of(field.type, field.encode_name)
    return made


def _example_of(kind: msgspec.inspect.Type, name: str) -> Any:
    match kind:
        case msgspec.inspect.UnionType(types=types):
            return _example_of(types[0], name)
        case msgspec.inspect.StructType(cls=cls):
            return example(cls)
        case (
            msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item)
        ):
            return [_example_of(item, name)] if isinstance(item, msgspec.inspect.StructType) else []
        case msgspec.inspect.TupleType(item_types=items):
            return [_example_of(item, name) for item in items]
        case msgspec.inspect.DictType() | msgspec.inspect.AnyType():
            return {}
        case msgspec.inspect.BoolType():
            return bool(EXAMPLES.get(name, False))
        case msgspec.inspect.IntType():
            return INSTANT_EXAMPLE if name == "at" or name.endswith(("_at", "_ns")) else 1
        case msgspec.inspect.FloatType():
            return 0.5
        case msgspec.inspect.EnumType(cls=cls):
            words = [each.value for each in cls]
            return EXAMPLES[name] if EXAMPLES.get(name) in words else words[-1]
        case msgspec.inspect.StrType():
            found = EXAMPLES.get(name, name)
            return found if isinstance(found, str) else name
        case _:
            return None


# --- served --------------------------------------------------------------------------------------

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
summary{cursor:pointer;padding:.3em 0}summary code{font-weight:600}
details{border-bottom:1px solid #ddd}h2{margin-top:2em}
pre{background:#f4f4f4;padding:.7em;overflow:auto;font-size:13px}
table{border-collapse:collapse}td,th{text-align:left;padding:.1em 1em .1em 0;vertical-align:top}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#262626}
details{border-color:#444}a{color:#8bf}}
"""
PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'sha256-"
        + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
        + "'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


def page(told: Mapping[str, Any]) -> str:
    """Return a document as a page of HTML."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width">',
        f"<title>Skep API</title><style>{STYLE}</style>",
        f"<h1>Skep API {html.escape(told['info']['version'])}</h1>",
        f"<p>{html.escape(told['info']['description'])}",
        "<p>The same for programs: <a href=openapi.json>openapi.json</a> (OpenAPI 3.1).",
    ]
    for tag in told["tags"]:
        parts.append(f"<h2 id={tag['name']}>{tag['name']}</h2><p>{html.escape(tag['description'])}")
        parts += [
            _shown(method, path, one)
            for path, methods in told["paths"].items()
            for method, one in methods.items()
            if tag["name"] in one["tags"]
        ]
    parts.append("<h2 id=reasons>Reasons</h2><p>Codes are stable.<table>")
    parts += [
        f"<tr><td><code>{html.escape(code)}</code><td>{html.escape(text)}"
        for code, text in told["x-reasons"].items()
    ]
    return "\n".join([*parts, "</table></html>", ""])


def _shown(method: str, path: str, one: Mapping[str, Any]) -> str:
    parts = [
        f"<details><summary><code>{method.upper()} {html.escape(path)}</code>"
        f" {html.escape(one['summary'])}</summary>"
    ]
    if one["parameters"]:
        rows = "".join(
            f"<tr><td><code>{each['name']}</code><td>{each['in']}"
            f"<td>{html.escape(each['description'])}"
            for each in one["parameters"]
        )
        parts.append(f"<table>{rows}</table>")
    if "requestBody" in one:
        given = one["requestBody"]["content"]["application/json"]["example"]
        parts.append(f"<p>Body, for example:{_pre(given)}")
    for status, answer in one["responses"].items():
        for media, said in answer.get("content", {}).items():
            parts.append(f"<p>{status}, {html.escape(media)}:{_pre(said.get('example'))}")
    refused = [status for status, answer in one["responses"].items() if "$ref" in answer]
    if refused:
        parts.append(f"<p>Refused with {', '.join(refused)}.")
    return "".join(parts) + "</details>"


def _pre(value: Any) -> str:
    if value is None:
        return ""
    return f"<pre>{html.escape(json.dumps(value, indent=1, ensure_ascii=False))}</pre>"


class OpenApi:
    """The handlers. What they answer is made once, when it is first asked for."""

    def __init__(self) -> None:
        self._document: dict[str, Any] | None = None
        self._raw = b""
        self._page = ""

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get(DOCUMENT_PATH, self.document, allow_head=False),
            web.get(PAGE_PATH, self.page, allow_head=False),
        ]

    async def document(self, request: web.Request) -> web.StreamResponse:
        """Answer the document."""
        del request
        await asyncio.to_thread(self._make)
        return web.Response(body=self._raw, content_type="application/json")

    async def page(self, request: web.Request) -> web.StreamResponse:
        """Answer the page."""
        del request
        await asyncio.to_thread(self._make)
        return web.Response(
            text=self._page,
            content_type="text/html",
            charset="utf-8",
            headers={
                "Content-Security-Policy": PAGE_POLICY,
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
            },
        )

    def _make(self) -> None:
        if self._document is None:
            made = document()
            self._raw, self._page = codec.encode(made), page(made)
            self._document = made
