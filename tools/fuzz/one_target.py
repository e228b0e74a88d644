"""`python -m tools.fuzz.one_target TARGET …`: libFuzzer on one target, with its own arguments; it ends the process."""

import shlex
import sys

import atheris  # type: ignore[import-untyped] # the extra `fuzz`, which few have

with atheris.instrument_imports(include=["worker", "json"]):
    from tools.fuzz.targets import TARGETS


def main() -> None:
    name, *arguments = sys.argv[1:]
    # A merge starts this command again, through a shell.
    command = shlex.join([sys.executable, "-m", "tools.fuzz.one_target", name])
    atheris.Setup([command, *arguments], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
