"""`python -m tests.record [write] [PART]...`: is the worker what it was?

Asks again what tests/record/*.jsonl records, and shows each answer that is another; exit 1 then. `write` records the
answers as they are now. A row of a question alone is a new question.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.record import commands, routes, rows, seeded, templates

FOLDER = Path(__file__).parent
PARTS = {
    "routes": routes.answers,
    "templates": templates.answers,
    "commands": commands.answers,
    "seeded": seeded.answers,
}


def asked_again(part: str, recorded: Sequence[rows.Json]) -> list[rows.Json]:
    asks = [row["ask"] for row in recorded]
    answers = json.loads(json.dumps([*PARTS[part](asks)]))
    return [{"ask": ask, "answer": answer} for ask, answer in zip(asks, answers, strict=True)]


def main(argv: list[str]) -> int:
    is_writing = "write" in argv
    n_different = 0
    for part in [name for name in argv if name != "write"] or PARTS:
        begun = time.monotonic()
        path = FOLDER / f"{part}.jsonl"
        recorded = rows.read(path)
        found = asked_again(part, recorded)
        different = [*rows.differences(recorded, found)]
        verdict = f"{part}: {len(different)} of {len(found)} differ, {time.monotonic() - begun:.0f} s"
        sys.stdout.write("\n".join([*different, verdict, ""]))
        n_different += len(different)
        if is_writing:
            rows.write(path, found)
    return 1 if n_different and not is_writing else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
