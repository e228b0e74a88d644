"""JSON schemas and regular expressions that cost a reader of theirs time, memory or its life.

The front lets nearly all of them through: at most 64 KiB, schemas as compact JSON nested at most 64 deep. Run as a
program with a GGUF's path it asks the real room about each and prints what that took; a child process, because a
mistake here would take the caller with it. Those that are made of many parts are made here; the others are data.
"""

import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any, Literal

import numpy as np
import psutil

from tests.constraints.bytewise import mask_of, submit
from tests.on_cpu import loaded_on_cpu
from tests.tables import table
from worker.constraints.answer import AnswerConstraint
from worker.constraints.jobs import Constraints
from worker.llama.library import give_back_memory
from worker.llama.model import constraints_of
from worker.wire.jobs import TokenId
from worker.wire.messages import Violation

Kind = Literal["json_schema", "regex"]

MAX_BYTES = 65_536


def _schema(schema: Any) -> tuple[Kind, str]:
    return "json_schema", json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def _object(properties: dict[str, Any], **keywords: Any) -> tuple[Kind, str]:
    return _schema({"type": "object", "properties": properties, **keywords})


def _referred(definitions: dict[str, Any], name: str = "0") -> tuple[Kind, str]:
    return _schema({"$ref": _to(name), "$defs": definitions})


def _to(name: object) -> str:
    return f"#/$defs/{name}"


def _ref(name: object) -> dict[str, str]:
    return {"$ref": _to(name)}


def _chain(n: int, **beside: Any) -> dict[str, Any]:
    """Each definition is the next."""
    return {**{str(i): {**_ref(i + 1), **beside} for i in range(n)}, str(n): {"type": "string"}}


def _tree(name: str, **beside: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"child": _ref(name)}, **beside}


WORDS = ["".join(letters) for letters in product("abcdefghij", repeat=4)]
"""10,000."""

REGEXES: dict[str, str] = {
    **table(__file__, "regexes"),
    "64 KiB of alternatives": "|".join(WORDS)[:MAX_BYTES],
    "10,000 alternatives, unrelated": "|".join(f"{7919 * i % 99991:x}" for i in range(10_000)),
    "alternatives behind a wildcard": f".*({'|'.join(WORDS[:8_000])})",
    "alternatives, repeated": f"({'|'.join(WORDS[:8_000])}){{1,1000}}",
    "a class of everything": f"[{''.join(chr(i) for i in range(0x4E00, 0x9FFF))}]*",
    "each second character": f"[{''.join(chr(i) for i in range(0x4E00, 0x9FFF, 2))}]{{1,1000}}",
    "a wildcard between letters": ".*".join("abcdefghijklmnopqrstuvwxyz" * 20),
    "a wildcard between any, many": "".join(f".*{chr(0x4E00 + i)}" for i in range(5_000)),
    "case-blind alternatives": "(?i)" + "|".join(WORDS[:8_000]),
    "named groups": "".join(f"(?P<g{i}>a)" for i in range(5_000)),
}

SCHEMAS: dict[str, tuple[Kind, str]] = {
    **{name: _schema(schema) for name, schema in table(__file__, "schemas").items()},
    **{name: ("json_schema", text) for name, text in table(__file__, "schemas as text").items()},
    # References.
    "twenty trees": _schema(
        {"allOf": [_ref(i) for i in range(20)], "$defs": {str(i): _tree(str(i)) for i in range(20)}}
    ),
    "trees of each other": _schema(
        {"allOf": [_ref(i) for i in range(20)], "$defs": {str(i): _tree(str((i + 1) % 20)) for i in range(20)}}
    ),
    "all of each other": _referred({str(i): {"allOf": [_ref(j) for j in range(30)]} for i in range(30)}),
    "any of each other": _referred({str(i): {"anyOf": [_ref(j) for j in range(30)]} for i in range(30)}),
    "properties of each other": _referred(
        {str(i): {"type": "object", "properties": {f"p{j}": _ref(j) for j in range(40)}} for i in range(40)}
    ),
    "2,000 references in a row": _referred(_chain(1_900)),
    "1,500 references with siblings in a row": _referred(_chain(1_200, minLength=1)),
    "100 references with siblings in a row": _referred(_chain(100, minLength=1)),
    "1,000 definitions as properties of the one before": _referred(
        {
            **{str(i): {"type": "object", "properties": {"a": _ref(i + 1)}, "required": ["a"]} for i in range(800)},
            "800": {"type": "null"},
        }
    ),
    "1,000 arrays in arrays": _referred(
        {**{str(i): {"type": "array", "items": _ref(i + 1)} for i in range(1_000)}, "1000": {"type": "null"}}
    ),
    "700 allOf in a row": _referred({**{str(i): {"allOf": [_ref(i + 1)]} for i in range(1_200)}, "1200": {}}),
    "anyOf in a row, doubling": _referred(
        {**{str(i): {"anyOf": [_ref(i + 1), _ref(i + 1)]} for i in range(600)}, "600": {"type": "null"}}
    ),
    "allOf in a row, doubling": _referred(
        {**{str(i): {"allOf": [_ref(i + 1), _ref(i + 1)]} for i in range(600)}, "600": {"type": "object"}}
    ),
    "properties in a row, doubling": _referred(
        {
            str(i): {"type": "object", "properties": {"a": _ref(i + 1), "b": _ref(i + 1)}, "required": ["a", "b"]}
            for i in range(400)
        }
        | {"400": {"type": "null"}}
    ),
    "an $id of each definition": _referred({str(i): {"$id": f"urn:x:{i}", "type": "null"} for i in range(1_500)}),
    "10,000 values": _schema({"enum": WORDS[:9_000]}),
    "10,000 numbers": _schema({"enum": list(range(10_000))}),
    "10,000 objects": _schema({"enum": [{"a": i} for i in range(5_000)]}),
    "10,000 arrays": _schema({"enum": [[i] for i in range(7_000)]}),
    "10,000 values, twice": _schema({"allOf": [{"enum": WORDS[:4_000]}, {"enum": WORDS[2_000:6_000]}]}),
    "oneOf of many": _schema({"oneOf": [{"const": word} for word in WORDS[:3_000]]}),
    "oneOf of many objects": _schema(
        {"oneOf": [{"type": "object", "properties": {"t": {"const": word}}, "required": ["t"]} for word in WORDS[:900]]}
    ),
    "anyOf of many strings": _schema({"anyOf": [{"type": "string", "minLength": i} for i in range(1_500)]}),
    "anyOf of many objects": _schema(
        {
            "anyOf": [
                {"type": "object", "properties": {word: {"type": "string"}}, "required": [word]} for word in WORDS[:900]
            ]
        }
    ),
    "anyOf of many open objects, alike": _schema(
        {"anyOf": [{"type": "object", "properties": {"a": {"minimum": i}}} for i in range(1_000)]}
    ),
    "2^20 ways": _schema({"allOf": [{"anyOf": [{"minimum": i}, {"maxLength": i}]} for i in range(20)]}),
    "3^12 objects": _schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"{j}{k}": {"type": "null"}}} for k in range(3)], "type": "object"}
                for j in range(12)
            ]
        }
    ),
    "2^16 strings": _schema(
        {"allOf": [{"anyOf": [{"pattern": f"{chr(97 + i)}"}, {"minLength": i}], "type": "string"} for i in range(16)]}
    ),
    "allOf of very many patterns": _schema(
        {"type": "string", "allOf": [{"pattern": f"{word}"} for word in WORDS[:2_500]]}
    ),
    "1,000 optional properties": _object({f"p{i}": {} for i in range(5_000)}),
    "1,000 optional properties, closed": _object({f"p{i}": {} for i in range(5_000)}, additionalProperties=False),
    "1,000 optional strings, closed": _object(
        {f"p{i}": {"type": "string"} for i in range(2_400)}, additionalProperties=False
    ),
    "1,000 required properties": _object(
        {f"p{i}": {"type": "null"} for i in range(1_900)}, required=[f"p{i}" for i in range(1_900)]
    ),
    "10,000 required properties, not described": _schema({"type": "object", "required": WORDS[:9_000]}),
    "at least one of 1,000": _object({f"p{i}": {} for i in range(1_000)}, additionalProperties=False, minProperties=1),
    "at most one of 1,000": _object({f"p{i}": {} for i in range(5_000)}, additionalProperties=False, maxProperties=1),
    "1,000 patterns": _schema({"type": "object", "patternProperties": {f"^{word}": {} for word in WORDS[:1_000]}}),
    "3,000 patterns": _schema({"type": "object", "patternProperties": {f"^{word}": {} for word in WORDS[:4_000]}}),
    "100 open patterns": _schema({"type": "object", "patternProperties": {f"{word}$": {} for word in WORDS[:100]}}),
    "patterns and names": _object(
        {word: {} for word in WORDS[:2_000]},
        patternProperties={f"^{word}": {"type": "null"} for word in WORDS[5_000:5_500]},
    ),
    "patterns like many names": _object(
        {word: {} for word in WORDS[:3_000]}, patternProperties={"a.*b|(a|b|c)*d": {"type": "null"}}
    ),
    "additional behind many long names": _object({word * 10: {} for word in WORDS[:1_300]}),
    "strings of 5,000, many": _object({f"p{i}": {"type": "string", "maxLength": 5_000 + i} for i in range(1_000)}),
    "items of items, at least 1,000": _schema(
        json.loads('{"type":"array","minItems":1000,"items":' * 20 + "{}" + "}" * 20)
    ),
    "1,000 bounds": _schema(
        {"anyOf": [{"type": "number", "minimum": i + 0.123456789, "maximum": i * 1e9} for i in range(1, 900)]}
    ),
    # Names and texts.
    "keywords unknown": _schema({f"é{i}" * 20: i for i in range(500)}),
    "dependentSchemas": _schema({"dependentSchemas": {word: {"required": [word]} for word in WORDS[:1_500]}}),
}

HOSTILE: dict[str, tuple[Kind, str]] = {
    **{f"regex: {name}": ("regex", text) for name, text in REGEXES.items()},
    **{f"schema: {name}": kind_and_text for name, kind_and_text in SCHEMAS.items()},
}
"""The constraint's name → the field, and its text."""

N_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Taken:
    """The costs of one of them. Times are of the processor, of this process and of those that it starts."""

    name: str
    compiling_s: float
    longest_mask_s: float
    longest_forcing_s: float
    refusal: str
    """"" where it was accepted."""
    end: str
    """The reason why the text could not go on after fewer tokens, "" if it could or was complete."""
    resident_bytes: int
    """The memory of this process after the constraint is closed, without what the allocator keeps for later."""


def _walk(constraint: AnswerConstraint, is_end: "np.typing.NDArray[np.bool_]") -> tuple[float, float, str]:
    """Go on by tokens drawn from those allowed, as a job does."""
    rng, longest_mask_s, longest_forcing_s = random.Random(0), 0.0, 0.0
    for _ in range(N_TOKENS):
        began_s = time.thread_time()
        constraint.take_forced(16)
        forced_s = time.thread_time()
        longest_forcing_s = max(longest_forcing_s, forced_s - began_s)
        try:
            allowed = np.flatnonzero(mask_of(constraint) & ~is_end)
        except ValueError as error:
            return max(longest_mask_s, time.thread_time() - forced_s), longest_forcing_s, str(error)
        longest_mask_s = max(longest_mask_s, time.thread_time() - forced_s)
        if not len(allowed):
            break
        constraint.accept(TokenId(int(rng.choice(allowed))))
    return longest_mask_s, longest_forcing_s, ""


def _children_s() -> float:
    usage = getrusage(RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _take(constraints: Constraints, name: str, is_end: "np.typing.NDArray[np.bool_]") -> Taken:
    kind, text = HOSTILE[name]
    asked = submit(json_schema=text) if kind == "json_schema" else submit(regex=text)
    began_s = time.thread_time() + _children_s()
    answer = constraints.constrain(asked)
    compiling_s = time.thread_time() + _children_s() - began_s
    walked, refusal = (0.0, 0.0, ""), ""
    if isinstance(answer, Violation):
        assert answer.field == kind, answer
        refusal = answer.message
    elif isinstance(answer, AnswerConstraint):
        walked = _walk(answer, is_end)
        answer.close()
    give_back_memory()
    return Taken(name, compiling_s, *walked[:2], refusal, walked[2], psutil.Process().memory_info().rss)


_PANICS = "schema: what is no number, shifted"
"""llguidance's first panic reads its own symbols, 49 MB that stay; it is taken once before memory is measured."""


def main() -> None:
    with loaded_on_cpu(Path(sys.argv[1])) as model:
        constraints = constraints_of(model)
        is_end = np.isin(np.arange(model.n_vocab), model.ends)
        _take(constraints, _PANICS, is_end)
        for name in HOSTILE:
            sys.stdout.write(json.dumps({"begun": name}) + "\n")
            sys.stdout.flush()
            sys.stdout.write(json.dumps(asdict(_take(constraints, name, is_end))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
