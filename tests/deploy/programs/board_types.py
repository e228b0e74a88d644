"""The keys of a board that Grafana's own types do not know: `python board_types.py BOARD.json` prints their places.

Alone in its file, as it runs in an environment that has nothing but grafana-foundation-sdk.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    match given:
        case dict():
            for key, value in given.items():
                if key in kept:
                    yield from lost(value, kept[key], f"{place}.{key}")
                else:
                    yield f"{place}.{key}"
        case list():
            for number, (value, there) in enumerate(zip(given, kept, strict=True)):
                yield from lost(value, there, f"{place}[{number}]")
        case _ if given != kept:
            yield place


if __name__ == "__main__":
    register_default_plugins()
    board = json.loads(Path(sys.argv[1]).read_text())
    print(*lost(board, json.loads(JSONEncoder().encode(Dashboard.from_json(board)))), sep="\n")
