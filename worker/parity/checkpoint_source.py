"""Where a SafeTensors checkpoint is: a folder, or a repository of the hub, fetched into the hub client's own cache.

Owns what may be written for one, and which of a repository's files make a checkpoint. Weights that can hold code
(pickles) and code are never fetched.
"""

import re
from pathlib import Path

from worker.errors import DownloadFailed, UsageError
from worker.model.hub import SourceFailed, snapshot

_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_HUB_ID = re.compile(rf"(?:hf:)?(?P<repo>{_WORD}/{_WORD})(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9._/-]*))?")
_FILES = ("*.safetensors", "*.json", "tokenizer*", "*.model", "*.jinja")


def checkpoint_folder(ref: str) -> Path:
    """`ref` is a folder that exists, else a hub id: `org/repo[@revision]`, `hf:` before it or not.

    Raises: UsageError for what is neither, or has no config.json; DownloadFailed where the hub does not give it.
    """
    folder = Path(ref)
    if not folder.is_dir():
        folder = _fetched(ref)
    if not (folder / "config.json").is_file():
        raise UsageError(f"{ref} is not a checkpoint: it has no config.json")
    return folder


def _fetched(ref: str) -> Path:
    match = _HUB_ID.fullmatch(ref)
    if match is None:
        raise UsageError(f"{ref!r} is no checkpoint folder and no hub id: write DIR or org/repo[@revision]")
    try:
        return snapshot(match["repo"], match["revision"] or "main", _FILES)
    except SourceFailed as error:
        raise DownloadFailed(f"{ref} is no folder here, and the hub does not give it: {error}") from error
