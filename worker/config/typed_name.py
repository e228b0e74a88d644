"""The name of a model without --served-model-name: the user's text after --model. Pure: it looks at no disk."""

import re

_OF_A_HUB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][^/]*")
"""`org/repo`, with whatever stands behind it."""


def typed_name(reference: str) -> str:
    """The reference as it was typed: of a path the file's name only, of a hub reference what follows `hf:`."""
    if reference.startswith("hf:"):
        return reference.removeprefix("hf:")
    path = reference.removeprefix("file:").rstrip("/")
    is_path = path != reference or path.lower().endswith(".gguf") or not _OF_A_HUB.fullmatch(path)
    return path.rpartition("/")[2] if is_path else path
