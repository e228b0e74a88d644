"""`python -m tools.fuzz [TARGET …]`: look for bytes that break a parser's law, guided by the code that they reach.

Owns the command line, and one process of atheris (libFuzzer) for each target: it instruments what it imports, and ends
with the process. What it finds is in the corpus; an input that breaks a law is written down, and the exit code is 1.
"""

import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import rich_click as click

from tools.fuzz.corpus import keep, kept
from tools.fuzz.targets import TARGETS, seeds

MAX_BYTES = 4096
_HERE = "tools.fuzz.one_target"


def _say(line: str) -> None:
    print(line, flush=True)


def _libfuzzer(target: str, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", _HERE, target, *arguments], check=False).returncode


def _fuzz(target: str, seconds: int, broken: Path) -> bool:
    """Return False if an input has broken the law. The corpus keeps the fewest inputs that reach all that was found."""
    with tempfile.TemporaryDirectory() as folder:
        found, fewest = Path(folder, "found"), Path(folder, "fewest")
        found.mkdir()
        fewest.mkdir()
        for each in (*seeds(target), *kept(target), *(path.read_bytes() for path in broken.glob(f"{target}-*"))):
            (found / sha256(each).hexdigest()).write_bytes(each)
        limits = (f"-max_len={MAX_BYTES}", "-timeout=20", "-rss_limit_mb=4096", f"-artifact_prefix={broken}/{target}-")
        code = _libfuzzer(target, *limits, f"-max_total_time={seconds}", str(found))
        _libfuzzer(target, *limits, "-merge=1", str(fewest), str(found))
        inputs = [path.read_bytes() for path in fewest.iterdir()]
        if inputs:
            keep(target, inputs)
        why = f"; it ended with {code}, for an input in {broken} or the reason above" if code else ""
        _say(f"{target}: {len(inputs)} inputs are kept{why}")
    return code == 0


@click.command
@click.argument("targets", nargs=-1, type=click.Choice([*TARGETS]))
@click.option("--seconds", type=click.IntRange(1), default=600, show_default=True, help="Look for N seconds a target.")
@click.option(
    "--broken",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".fuzz"),
    show_default=True,
    help="Write inputs that break a law into DIR.",
)
def fuzz(targets: tuple[str, ...], seconds: int, broken: Path) -> None:
    """Fuzz the named parsers, or all. Exit 1 if an input has broken a law."""
    broken.mkdir(parents=True, exist_ok=True)
    are_kept = [_fuzz(target, seconds, broken) for target in targets or TARGETS]
    sys.exit(0 if all(are_kept) else 1)


if __name__ == "__main__":
    fuzz()
