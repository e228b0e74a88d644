"""The constraints on an answer: a grammar, a JSON schema or a regular expression; their size, depth and number.

Owns: the text of a schema that is sent to the engine, and the limits that the front checks. Pure.
"""

from itertools import accumulate
from typing import Any

import msgspec

from worker.apis.core.bodies import Problems
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


def check_constraints(
    problems: Problems, grammar: str | None, json_schema: SchemaText | None, regex: str | None
) -> None:
    """Add the first limit that each constraint breaks, in the order of the fields. Their texts are never echoed."""
    given = {"grammar": grammar, "json_schema": json_schema, "regex": regex}
    names = [name for name, text in given.items() if text is not None]
    for name, text in given.items():
        if text is None:
            continue
        if name == names[-1] and len(names) > 1:
            others = names[:-1]
            what = f"cannot go with {' and '.join(others)}; send one of them"
            problems.add(name, f"exclusive({','.join(others)})", what)
        if name == "json_schema":
            _check_schema(problems, text.encode())
        else:
            _check_text(problems, name, text)


def _check_text(problems: Problems, field: str, text: str) -> None:
    n_bytes = len(text.encode())
    if not text.strip():
        problems.add(field, "non_empty", "must not be blank")
    elif n_bytes > MAX_BYTES:
        problems.add(field, f"max_length({MAX_BYTES})", f"must be at most {MAX_BYTES} bytes (got {n_bytes})")
    elif "\0" in text:
        problems.add(field, "no_nul", "must not contain NUL characters")


def _check_schema(problems: Problems, text: bytes) -> None:
    if len(text) > MAX_BYTES:
        what = f"must be at most {MAX_BYTES} bytes as compact JSON (got {len(text)})"
        problems.add("json_schema", f"max_length({MAX_BYTES})", what)
    elif (depth := _depth(text)) > MAX_DEPTH:
        what = f"must be nested at most {MAX_DEPTH} deep (got {depth})"
        problems.add("json_schema", f"max_depth({MAX_DEPTH})", what)


def _depth(text: bytes) -> int:
    """The deepest nesting of objects and arrays in a JSON text. This takes a third of the time of a walk."""
    # Two adjacent quotes have nothing between them, independent of the strings that they belong to.
    kept = _without_escapes(text).translate(_STEPS, _NEITHER_BRACKET_NOR_QUOTE).replace(b'""', b"")
    outside = b"".join(kept.split(b'"')[::2])
    return max(accumulate(memoryview(outside).cast("b")), default=0)


def _without_escapes(text: bytes) -> bytes:
    """JSON in which every quote begins or ends a string."""
    return text.replace(b"\\\\", b"").replace(b'\\"', b"")
