"""A real worker in front of another engine: `python -m tests.fronted_by MODULE[:KIND] --model … [options of serve]`.

MODULE is run as `python -m MODULE [KIND] FD GENERATION` in the engine's place.
"""

import sys

from worker.cli import parse
from worker.serve import run


def main() -> None:
    module, *arguments = sys.argv[1:]
    raise SystemExit(run(parse(arguments), engine_command=(sys.executable, "-m", *module.split(":"))))


if __name__ == "__main__":
    main()
