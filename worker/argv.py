"""Which command an argument list is for. Imports nothing: it is asked before the signal handlers are there."""

from collections.abc import Sequence

HELP_FLAGS = ("-h", "--help")


def means_serve(argv: Sequence[str]) -> bool:
    """By name, by flags without a command, by a model file in a command's place, or by nothing at all."""
    if not argv or argv[0] == "serve" or is_model_file(argv[0]):
        return True
    return argv[0].startswith("-") and argv[0] not in {*HELP_FLAGS, "--version"}


def is_model_file(argument: str) -> bool:
    """Whether an argument that follows no flag can only be a model: `./model.gguf`."""
    return argument.lower().endswith(".gguf") and not argument.startswith("-")
