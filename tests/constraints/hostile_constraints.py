"""JSON schemas and regular expressions that cost a reader of theirs time, memory or its life.

The front lets nearly all of them through: at most 64 KiB, schemas as compact JSON nested at most 64 deep. Run as a
program with a GGUF's path it asks the real room about each and prints what that took; a child process, because a
mistake here would take the caller with it.
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


def _nested(schema: Any, n: int, keyword: str) -> Any:
    for _ in range(n):
        schema = {keyword: [schema] if keyword.endswith("Of") else schema}
    return schema


def _tree(name: str, **beside: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"child": _ref(name)}, **beside}


WORDS = ["".join(letters) for letters in product("abcdefghij", repeat=4)]
"""10,000."""

REGEXES: dict[str, str] = {
    "64 KiB of letters": "a" * MAX_BYTES,
    "64 KiB of alternatives": "|".join(WORDS)[:MAX_BYTES],
    "64 KiB of alternatives, all alike": "|".join("a" * 3 for _ in range(16_000)),
    "32,000 alternatives of a letter": "|".join(["a", "b"] * 16_000),
    "10,000 alternatives, unrelated": "|".join(f"{7919 * i % 99991:x}" for i in range(10_000)),
    "alternatives behind a wildcard": f".*({'|'.join(WORDS[:8_000])})",
    "alternatives, repeated": f"({'|'.join(WORDS[:8_000])}){{1,1000}}",
    "20,000 nested groups": f"{'(' * 20_000}a{')' * 20_000}",
    "32,000 nested groups": f"{'(' * 32_000}a{')' * 32_000}",
    "20,000 groups that never close": "(" * 20_000,
    "200 nested groups": f"{'(' * 200}a{')' * 200}",
    "240 nested repetitions": f"{'(' * 240}a{')*' * 240}",
    "240 nested repetitions, at least once": f"{'(' * 240}a{')+' * 240}",
    "100 nested choices": "".join(f"(a{i}|" for i in range(100)) + "x" + ")" * 100,
    "20,000 nested classes": f"{'[' * 20_000}a{']' * 20_000}",
    "32,000 stars": "a" + "*" * 32_000,
    "64,000 question marks": "a" + "?" * 64_000,
    "stars upon stars": "(a*)*" * 13_000,
    "(a+)+": "(a+)+",
    "(a+)+ and its like, many": "(a+)+(b*)*(a|a)*" * 4_000,
    "(a|a)*b": "(a|a|a|a)*b",
    "((a+)+)+b": "((((((a+)+)+)+)+)+)+b",
    "100,000 times": "a{1,100000}",
    "100,000 times any": ".{1,100000}",
    "60,000 times any at most": ".{0,60000}",
    "4,000,000,000 times": "a{4000000000}",
    "99999999999999999999 times": "a{99999999999999999999}",
    "1,000 times a class": r"\p{L}{1,1000}",
    "500 times a letter of any alphabet": r"\w{1,500}",
    "500 times a letter of any alphabet, exactly": r"\w{500}",
    "60,000 times a class": r"\p{L}{1,60000}",
    "many classes": r"\p{L}\p{N}\p{S}\P{L}" * 3_000,
    "a class of everything": f"[{''.join(chr(i) for i in range(0x4E00, 0x9FFF))}]*",
    "each second character": f"[{''.join(chr(i) for i in range(0x4E00, 0x9FFF, 2))}]{{1,1000}}",
    "a product": "((a{100}){100}){100}",
    "a product of ranges": "((a{0,100}){0,100}){0,100}",
    "a product of classes": r"(((\p{L}{0,100}){0,100}){0,100}){0,100}",
    "a product of three": "(((a|b){1,50}c){1,50}d){1,50}",
    "a product to the 60th": "(" * 60 + "a" + "{2}){2}" * 1 + "){2}" * 59,
    "many ranges": "a{0,1000}" * 7_000,
    "many ranges of choices": "(a|b){0,1000}" * 5_000,
    "optionals before the same": "a?" * 15_000 + "a" * 15_000,
    "the 20th from the end": "(a|b)*a(a|b){20}",
    "the 1,000th from the end": "(a|b)*a(a|b){1000}",
    "the 1,000th from the end, of anything": r"(?s:.*)x(?s:.{1000})",
    "the 20th of all letters from the end": r"\w*é\w{20}",
    "many 20ths from the end": "|".join(f"[a-z]*{letter}[a-z]{{20}}" for letter in "abcdefghijklmnopqrstuvwxyz"),
    "a wildcard between letters": ".*".join("abcdefghijklmnopqrstuvwxyz" * 20),
    "a wildcard between any, many": "".join(f".*{chr(0x4E00 + i)}" for i in range(5_000)),
    "lazy wildcards": ".*?" * 20_000,
    "case-blind": "(?i)" + "ſkelvin" * 7_000,
    "case-blind alternatives": "(?i)" + "|".join(WORDS[:8_000]),
    "case-blind any": r"(?i)\p{Lu}{1,1000}",
    "words at bounds": r"\b\w+\b" * 1_000,
    "anchors": "^" * 30_000 + "$" * 30_000,
    "anchors between": "a^$b" * 10_000,
    "looks ahead": "(?=a)" * 10_000,
    "looks behind": "(?<=a)b",
    "refers back": r"(a)\1",
    "nothing matches": r"[^\s\S]",
    "an empty alternative": "|" * 60_000,
    "empty groups": "()" * 30_000,
    "named groups": "".join(f"(?P<g{i}>a)" for i in range(5_000)),
    "flags": "(?i)(?-i)" * 7_000,
    "an empty text": "()",
    "invalid UTF-8": r"(?-u:\xff)+",
    "NUL by escape": r"\x00+",
    "NUL": "a\0b",
    "half a surrogate pair": r"\uD800",
    "beyond Unicode": r"\x{110000}",
    "slashes": "/" * 60_000,
    "a slash and a rule": 'a/\nstart: "b"\n',
    "lines": "\n" * 60_000,
    "backslashes": "\\" * 60_001,
    "an open class": "[a-" * 20_000,
    "a class that ends before it begins": "[z-a]",
    "class operations": "[a-z&&[^aeiou]]" * 4_000,
    "nested class operations": "[a-z--[b" * 5_000 + "]]" * 5_000,
}

SCHEMAS: dict[str, tuple[Kind, str]] = {
    # References.
    "$ref to the root": _schema({"$ref": "#"}),
    "$ref to itself": _referred({"0": _ref(0)}),
    "$ref to itself and back": _referred({"0": _ref(1), "1": _ref(0)}),
    "allOf of itself": _referred({"0": {"allOf": [_ref(0), {"type": "object"}]}}),
    "allOf of the root": _schema({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
    "anyOf of itself": _referred({"0": {"anyOf": [_ref(0), _ref(0)]}}),
    "oneOf of itself": _referred({"0": {"oneOf": [_ref(0), {"type": "null"}]}}),
    "a property that is the root": _object({"a": {"$ref": "#"}}, required=["a"]),
    "an item that is the root": _schema({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    "both trees": _schema({"allOf": [_ref(1), _ref(2)], "$defs": {"1": _tree("1"), "2": _tree("2")}}),
    "twenty trees": _schema(
        {"allOf": [_ref(i) for i in range(20)], "$defs": {str(i): _tree(str(i)) for i in range(20)}}
    ),
    "trees of each other": _schema(
        {"allOf": [_ref(i) for i in range(20)], "$defs": {str(i): _tree(str((i + 1) % 20)) for i in range(20)}}
    ),
    "a tree with siblings": _referred({"0": {**_tree("0"), "allOf": [_tree("0"), _tree("0", required=["child"])]}}),
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
    "$ref into properties": _object({"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}}),
    "$ref into itself, deeper and deeper": _object({"a": {"$ref": "#/properties/a/properties/a"}}),
    "$ref into nowhere": _schema({"$ref": "#/nowhere"}),
    "$ref with a long pointer": _schema({"$ref": "#" + "/a" * 30_000}),
    "$ref that is no URI": _schema({"$ref": "::: \\ %zz \u0000 <>"}),
    "remote $ref": _schema({"$ref": "https://example.com/schema.json"}),
    "remote $ref, to this machine": _schema({"$ref": "http://127.0.0.1:1/"}),
    "$ref to a file": _schema({"$ref": "file:///etc/passwd"}),
    "remote $schema": _schema({"$schema": "https://example.com/meta", "type": "string"}),
    "remote $id": _schema({"$id": "https://example.com/a", "$ref": "b", "type": "object"}),
    "$id that is no URI": _schema({"$id": "::: %zz", "type": "string"}),
    "an $id of each definition": _referred({str(i): {"$id": f"urn:x:{i}", "type": "null"} for i in range(1_500)}),
    "$id inside $id": _schema(_nested({"$id": "a/", "$ref": "#"}, 30, "allOf")),
    "$dynamicRef": _schema({"$dynamicAnchor": "a", "properties": {"a": {"$dynamicRef": "#a"}}}),
    "$recursiveRef": _schema({"$recursiveAnchor": True, "properties": {"a": {"$recursiveRef": "#"}}}),
    "an anchor of itself": _schema({"$anchor": "a", "$ref": "#a"}),
    # Numbers of things.
    "10,000 values": _schema({"enum": WORDS[:9_000]}),
    "10,000 numbers": _schema({"enum": list(range(10_000))}),
    "10,000 objects": _schema({"enum": [{"a": i} for i in range(5_000)]}),
    "10,000 arrays": _schema({"enum": [[i] for i in range(7_000)]}),
    "30,000 nulls": _schema({"enum": [None] * 13_000}),
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
    "anyOf of anyOf": _schema(_nested({"type": "string"}, 30, "anyOf")),
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
    "allOf of 20 patterns": _schema({"type": "string", "allOf": [{"pattern": word} for word in WORDS[:20]]}),
    "allOf of many patterns": _schema(
        {"type": "string", "allOf": [{"pattern": f"{word}"} for word in WORDS[:2_000:100]]}
    ),
    "allOf of very many patterns": _schema(
        {"type": "string", "allOf": [{"pattern": f"{word}"} for word in WORDS[:2_500]]}
    ),
    "allOf of many counts": _schema(
        {"type": "string", "allOf": [{"pattern": f"^(.{{{i}}})*$"} for i in (7, 11, 13, 17, 19, 23, 29, 31)]}
    ),
    "allOf of many multiples": _schema(
        {"type": "integer", "allOf": [{"multipleOf": i} for i in (9973, 9967, 9949, 9941, 9931)]}
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
    "prefixItems": _schema({"type": "array", "prefixItems": [{"type": "string"}] * 3_500}),
    "prefixItems of anything": _schema({"type": "array", "prefixItems": [{}] * 20_000, "items": False}),
    # Sizes.
    "a string of 1,000,000,000": _schema({"type": "string", "minLength": 1_000_000_000}),
    "a string of at most 1,000,000,000": _schema({"type": "string", "maxLength": 1_000_000_000}),
    "a string of 100,000": _schema({"type": "string", "minLength": 100_000, "maxLength": 100_000}),
    "a string of 1,000,000 with a pattern": _schema({"type": "string", "pattern": "^[ab]*$", "minLength": 1_000_000}),
    "strings of 5,000, many": _object({f"p{i}": {"type": "string", "maxLength": 5_000 + i} for i in range(1_000)}),
    "a string longer than any number": _schema({"type": "string", "maxLength": 2**70}),
    "a string longer than a half": _schema({"type": "string", "maxLength": 2**32 + 5, "minLength": 2**32}),
    "1,000,000,000 items": _schema({"type": "array", "minItems": 1_000_000_000}),
    "at most 1,000,000,000 items": _schema({"type": "array", "maxItems": 1_000_000_000, "items": {"type": "null"}}),
    "10,000 items": _schema({"type": "array", "minItems": 10_000, "maxItems": 10_000}),
    "items of items": _schema(
        {"type": "array", "maxItems": 300, "items": {"type": "array", "maxItems": 300, "items": {"type": "null"}}}
    ),
    "items of items, at least 1,000": _schema(
        json.loads('{"type":"array","minItems":1000,"items":' * 20 + "{}" + "}" * 20)
    ),
    "1,000,000,000 properties": _schema({"type": "object", "minProperties": 1_000_000_000}),
    "at most 1,000,000,000 properties": _schema({"type": "object", "maxProperties": 1_000_000_000}),
    "100,000 properties": _schema({"type": "object", "minProperties": 100_000, "maxProperties": 100_000}),
    "a value of 64 KiB": _schema({"const": "a" * 65_000}),
    "a value of 64 KiB of escapes": _schema({"const": '"\\\n' * 10_000}),
    "values of 32 KiB": _schema({"enum": ["a" * 32_000 + "b", "a" * 32_000 + "c"]}),
    "a name of 64 KiB": _object({"a" * 65_000: {}}),
    "a name of 30 KiB that others may not have": _object({"é" * 15_000: {}, "e" * 30_000: {}}),
    "a pattern of 64 KiB": _schema({"type": "string", "pattern": "a|" * 32_000}),
    "a pattern of groups": _schema({"type": "string", "pattern": "(" * 30_000 + ")" * 30_000}),
    "a pattern of a pattern": _schema({"type": "string", "pattern": "^(a|b)*a(a|b){20}$"}),
    "a pattern far from the end": _schema({"type": "string", "pattern": "x.{1000}$"}),
    "a pattern of counts": _schema({"type": "string", "pattern": "((a{100}){100}){100}"}),
    "a pattern with a length": _schema(
        {"type": "string", "pattern": "^([a-z]+ )*[a-z]+$", "minLength": 5_000, "maxLength": 10_000}
    ),
    "a pattern of classes": _schema({"type": "string", "pattern": r"^\p{L}{1,1000}$"}),
    "a pattern of words": _schema({"type": "string", "pattern": r"^(\w+\s?){1,100}$", "maxLength": 1_000}),
    # Numbers.
    "a multiple of 1e-300": _schema({"type": "number", "multipleOf": 1e-300}),
    "a multiple of 1e-9": _schema({"type": "number", "multipleOf": 1e-9}),
    "a multiple of 4,294,967,291": _schema({"type": "integer", "multipleOf": 4_294_967_291}),
    "a multiple of 1,000,003": _schema({"type": "integer", "multipleOf": 1_000_003, "minimum": 5}),
    "a multiple of 1,000,003 within bounds": _schema(
        {"type": "integer", "multipleOf": 1_000_003, "minimum": 5, "maximum": 123_456_789_012}
    ),
    "a multiple of 0.0000007": _schema({"type": "number", "multipleOf": 7e-7}),
    "a multiple of 0": _schema({"type": "number", "multipleOf": 0}),
    "a multiple of -1": _schema({"type": "number", "multipleOf": -1}),
    "bounds of 10^300": _schema({"type": "integer", "minimum": 10**300, "maximum": 10**301}),
    "bounds of 2^63": _schema({"type": "integer", "minimum": -(2**63), "maximum": 2**63}),
    "bounds of 2^64": _schema({"type": "integer", "minimum": 2**64, "maximum": 2**64 + 5}),
    "bounds of 1e308": _schema({"type": "number", "minimum": -1e308, "maximum": 1e308}),
    "bounds of 5e-324": _schema({"type": "number", "minimum": 5e-324, "maximum": 1e-300}),
    "1e999": ("json_schema", '{"type":"number","maximum":1e999}'),
    "a number of 10,000 digits": ("json_schema", f'{{"type":"integer","maximum":{"9" * 10_000}}}'),
    "a constant of 10,000 digits": ("json_schema", f'{{"const":{"9" * 10_000}}}'),
    "a constant of 10,000 decimals": ("json_schema", f'{{"const":0.{"9" * 10_000}}}'),
    "1,000 bounds": _schema(
        {"anyOf": [{"type": "number", "minimum": i + 0.123456789, "maximum": i * 1e9} for i in range(1, 900)]}
    ),
    # Names and texts.
    "names of control characters": _object({chr(i): {} for i in range(32)}),
    "names of half surrogate pairs": ("json_schema", r'{"type":"object","properties":{"\ud800":{},"\udfff":{}}}'),
    "names alike": ("json_schema", '{"type":"object","properties":{' + ",".join(['"a":{}'] * 5_000) + "}}"),
    "the empty name": _object({"": {}}, required=[""]),
    "NUL in a constant": _schema({"const": "\0"}),
    "NUL": ("json_schema", '{"const":"\0"}'),
    "a byte order mark": ("json_schema", '\ufeff{"type":"string"}'),
    "a name of the library's own": _schema({"x-guidance": {"whitespace_pattern": "(a+)+", "lenient": True}}),
    "a name of the library's own, mistaken": _schema({"x-guidance": {"no_such": 1}, "type": "object"}),
    "white space of the library's own": _schema({"x-guidance": {"whitespace_pattern": "(" * 30_000}}),
    "separators of the library's own": _schema({"x-guidance": {"item_separator": "a{1,100000}"}, "type": "object"}),
    "what is no list": _schema({"required": "é" * 200}),
    "what is no list, of two": _schema({"type": "object", "required": "aé" * 200}),
    "what is no number": _schema({"minimum": "aé" * 200, "type": "number"}),
    "what is no number, shifted": _schema({"minimum": "é" * 200, "type": "number"}),
    "what is no type": _schema({"type": "é" * 200}),
    "what is no pattern": _schema({"pattern": "é" * 200 + "("}),
    "what is no format": _schema({"format": "é" * 200, "type": "string"}),
    "keywords unknown": _schema({f"é{i}" * 20: i for i in range(500)}),
    "nested 64 deep": _schema(_nested({}, 30, "allOf")),
    "nested 64 deep in not": _schema(_nested({}, 63, "not")),
    "nested 64 deep in items": _schema(_nested({}, 63, "items")),
    "constants nested 60 deep": ("json_schema", '{"const":' + "[" * 60 + "]" * 60 + "}"),
    "if, then, else": _schema({"if": {"type": "string"}, "then": {}, "else": False}),
    "dependentSchemas": _schema({"dependentSchemas": {word: {"required": [word]} for word in WORDS[:1_500]}}),
    "unevaluatedProperties": _schema({"type": "object", "unevaluatedProperties": False}),
    "uniqueItems": _schema({"type": "array", "uniqueItems": True}),
    "contains": _schema({"type": "array", "contains": {"type": "string"}, "minContains": 100_000}),
    "nothing": _schema(False),
    "not an object": ("json_schema", "[]"),
    "nothing at all": ("json_schema", ""),
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
