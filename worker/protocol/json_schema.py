"""A JSON schema at the door: its size and depth, then what of it cannot be honoured; and the plain one to convert.

Refuses to know: GBNF, llama.cpp; the keywords are schema/'s. Pure; runs on the front's event loop.
"""

from collections.abc import Iterable, Iterator

import msgspec

from worker.protocol.field_errors import MAX_ERRORS, FieldError
from worker.protocol.schema.reader import MAX_DEPTH, Schema, SchemaReader

MAX_BYTES = 65_536
"""Of the schema as compact JSON in UTF-8."""


def schema_errors(schema: Schema) -> Iterator[FieldError]:
    """What is wrong with a schema, or cannot be honoured; nothing of it but the way to the part is echoed."""
    if _is_deep(schema):
        yield _error(f"max_depth({MAX_DEPTH})", f"json_schema must be nested at most {MAX_DEPTH} deep")
        return
    n_bytes = len(msgspec.json.encode(schema))
    if n_bytes > MAX_BYTES:
        message = f"json_schema must be at most {MAX_BYTES} bytes as compact JSON (got {n_bytes})"
        yield _error(f"max_length({MAX_BYTES})", message)
        return
    for fault in SchemaReader(schema).faults.found[:MAX_ERRORS]:
        yield _error(fault.constraint, f"json_schema {fault.pointer} {fault.what}")


def plain_schema(schema: Schema) -> str:
    """A schema without errors as JSON text for the converter, its properties in their order."""
    reader = SchemaReader(schema)
    assert not reader.faults.found, "refused at the door"
    # A reference at the very top would keep the converter from looking at the definitions.
    return msgspec.json.encode({"anyOf": [reader.top], "$defs": reader.definitions}).decode()


def _error(constraint: str, message: str) -> FieldError:
    return FieldError(field="json_schema", constraint=constraint, message=message)


def _is_deep(schema: object) -> bool:
    """Whether objects and arrays go deeper than MAX_DEPTH; without recursion, which a hostile value would exhaust."""
    level = _nested([schema])
    for _ in range(MAX_DEPTH):
        level = _nested(inner for value in level for inner in (value.values() if isinstance(value, dict) else value))
    return bool(level)


def _nested(values: Iterable[object]) -> list[dict[str, object] | list[object]]:
    return [value for value in values if isinstance(value, dict | list)]
