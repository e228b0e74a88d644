"""Command lines: exit codes, and what is written to both outputs."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from client.child import without_settings
from tests.gguf_files import tiny_model
from tests.record.masks import shown
from tests.record.rows import Json

_PATIENCE_S = 120.0


def answers(asks: Sequence[Json]) -> Iterator[Json]:
    """TINY in an argument is the path of a file without weights, BROKEN of one that is no model."""
    with tempfile.TemporaryDirectory(prefix="record-") as folder, ThreadPoolExecutor(2) as pool:
        tiny, broken = tiny_model().write(Path(folder) / "tiny.gguf"), Path(folder) / "broken.gguf"
        broken.write_bytes(b"GGUF\x00")
        paths = {"TINY": str(tiny), "BROKEN": str(broken), "FOLDER": folder}
        common = {**without_settings(), "COLUMNS": "100", "XDG_CACHE_HOME": folder}
        yield from pool.map(
            lambda ask: _answer([paths.get(word, word) for word in ask["argv"]], common | ask.get("environment", {})),
            asks,
        )


def _answer(argv: Sequence[str], environment: Mapping[str, str]) -> Json:
    ended = subprocess.run(
        [sys.executable, "-m", "worker", *argv],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    return {"code": ended.returncode, "stdout": shown(ended.stdout), "stderr": shown(ended.stderr)}
