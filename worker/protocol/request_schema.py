"""The JSON schema of an execute request, for the OpenAPI document: types, documented bounds, defaults, descriptions.

Pure; runs once, when the application is made.
"""

from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from worker.protocol.ranges import f32_text
from worker.protocol.request import ExecuteRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that the worker's settings decide."""

    max_prompt_chars: int
    max_tokens_out: int


def request_schema(limits: Limits) -> dict[str, Any]:
    """`type`, `properties` in the order of the protocol, and `required`."""
    schema = msgspec.json.schema(ExecuteRequest)["$defs"]["ExecuteRequest"]
    fields = msgspec.structs.fields(ExecuteRequest)
    properties = {field.name: schema["properties"][field.name] | _bounds(field.type) for field in fields}
    properties["prompt"]["maxLength"] = limits.max_prompt_chars
    properties["max_tokens"]["maximum"] = properties["min_tokens"]["maximum"] = limits.max_tokens_out
    return {
        "title": schema["title"],
        "type": "object",
        "properties": {name: _with_short_default(field) for name, field in properties.items()},
        "required": schema["required"],
    }


def _bounds(annotated: Any) -> dict[str, Any]:
    """A rule's bounds, where msgspec gives those of the type: u32 and the like."""
    metas = [meta for meta in get_args(annotated)[1:] if isinstance(meta, msgspec.Meta)]
    return {name: bound for meta in metas for name, bound in (meta.extra_json_schema or {}).items()}


def _with_short_default(field: dict[str, Any]) -> dict[str, Any]:
    """An f32's decimals end where they tell it from its neighbours."""
    default = field.get("default")
    return field | {"default": float(f32_text(default))} if isinstance(default, float) else field
