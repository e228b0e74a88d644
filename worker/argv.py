"""The choice of the command that an argument list is for. Imports nothing: it runs before the signal handlers exist."""

from collections.abc import Sequence

HELP_FLAGS = ("-h", "--help")


def means_serve(argv: Sequence[str]) -> bool:
    """True for `serve` by name, for flags without a command, for a model file in a command's place, and for no
    arguments at all.
    """
    if not argv or argv[0] == "serve" or is_model_file(argv[0]):
        return True
    return argv[0].startswith("-") and argv[0] not in {*HELP_FLAGS, "--version"}


def is_model_file(argument: str) -> bool:
    """True if an argument that follows no flag can only be a model, as `./model.gguf` can."""
    return argument.lower().endswith(".gguf") and not argument.startswith("-")
