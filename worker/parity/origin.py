"""Where a checkpoint comes from: the note that `parity reference` leaves in one that it makes from a GGUF."""

from pathlib import Path
from typing import Final

import msgspec

from worker.errors import UsageError
from worker.model.catalog import sha256_of

_FILE: Final = "llorch-parity.json"


class Origin(msgspec.Struct, frozen=True):
    """The GGUF's name, without its folder, and digest; empty for a checkpoint that we did not make."""

    made_from: str = ""
    sha256: str = ""


def write_origin(gguf: Path, folder: Path) -> None:
    """Say in the checkpoint in `folder` that it was made from `gguf`."""
    (folder / _FILE).write_bytes(msgspec.json.encode(Origin(gguf.name, sha256_of(gguf))))


def made_from(folder: Path) -> Origin:
    """What the checkpoint says. Raises: UsageError where its note cannot be read."""
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=Origin)
    except FileNotFoundError:
        return Origin()
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{folder}/{_FILE} cannot be read: {error}") from None
