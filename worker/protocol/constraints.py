"""The constraints on an answer: a grammar, a JSON schema or a regular expression; their size, depth and number.

Owns: the text of a schema that is sent to the engine, and the limits that the front checks. Pure.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import msgspec

from worker.protocol.bodies import FieldError
from worker.wire.encoding import encode_json
from worker.wire.jobs import SchemaText

MAX_BYTES = 65_536
"""The most bytes of a constraint in UTF-8, and of a schema as compact JSON."""
MAX_DEPTH = 64
"""The deepest nesting of objects and arrays in a schema. A parser of schemas recurses once for each level."""

_schema = msgspec.json.Decoder(dict[str, Any] | bool | None)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One level in, and one level out as a signed byte."""
_NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'[{]}"'))


def schema_text(raw: bytes) -> SchemaText | None:
    """The schema in a text that has proved to be JSON; None for null.

    Raises: msgspec.ValidationError for another type, a number out of range or a name that is given twice.
    """
    schema = _schema.decode(raw)
    if schema is None:
        return None
    text = encode_json(schema)
    # The decoder keeps the last of members given twice, and nothing of a schema may be lost.
    if _without_escapes(text).count(b'"') != _without_escapes(raw).count(b'"'):
        raise msgspec.ValidationError("a name is given twice")
    return SchemaText(text.decode())


def constraint_errors(grammar: str | None, json_schema: SchemaText | None, regex: str | None) -> Iterator[FieldError]:
    """The first limit that each constraint breaks, in the order of the fields. Their texts are never echoed."""
    given = {"grammar": grammar, "json_schema": json_schema, "regex": regex}
    names = [name for name, text in given.items() if text is not None]
    for name, text in given.items():
        if text is None:
            continue
        if name == names[-1] and len(names) > 1:
            others = names[:-1]
            message = f"{name} cannot go with {' and '.join(others)}; send one of them"
            yield FieldError(field=name, constraint=f"exclusive({','.join(others)})", message=message)
        yield from _schema_errors(text) if name == "json_schema" else _text_errors(name, text)


def _text_errors(field: str, text: str) -> Iterator[FieldError]:
    n_bytes = len(text.encode())
    if not text.strip():
        yield FieldError(field=field, constraint="non_empty", message=f"{field} must not be blank")
    elif n_bytes > MAX_BYTES:
        message = f"{field} must be at most {MAX_BYTES} bytes (got {n_bytes})"
        yield FieldError(field=field, constraint=f"max_length({MAX_BYTES})", message=message)
    elif "\0" in text:
        yield FieldError(field=field, constraint="no_nul", message=f"{field} must not contain NUL characters")


def _schema_errors(schema: str) -> Iterator[FieldError]:
    text = schema.encode()
    if len(text) > MAX_BYTES:
        message = f"json_schema must be at most {MAX_BYTES} bytes as compact JSON (got {len(text)})"
        yield FieldError(field="json_schema", constraint=f"max_length({MAX_BYTES})", message=message)
    elif (depth := _depth(text)) > MAX_DEPTH:
        message = f"json_schema must be nested at most {MAX_DEPTH} deep (got {depth})"
        yield FieldError(field="json_schema", constraint=f"max_depth({MAX_DEPTH})", message=message)


def _depth(text: bytes) -> int:
    """The deepest nesting of objects and arrays in a JSON text. This takes a third of the time of a walk."""
    # Two adjacent quotes have nothing between them, independent of the strings that they belong to.
    kept = _without_escapes(text).translate(_STEPS, _NEITHER_BRACKET_NOR_QUOTE).replace(b'""', b"")
    outside = b"".join(kept.split(b'"')[::2])
    return max(accumulate(memoryview(outside).cast("b")), default=0)


def _without_escapes(text: bytes) -> bytes:
    """JSON in which every quote begins or ends a string."""
    return text.replace(b"\\\\", b"").replace(b'\\"', b"")
