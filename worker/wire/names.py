"""The places in an answer where a model writes a tool's name in JSON: `{"name": "NAME", …}`.

How probable its tokens were says how sure the model was of the tool. Pure; called for every token of a job that is
offered tools.
"""

import re
from collections.abc import Sequence
from typing import Final

NAME_KEYS: Final = ("name", "tool_name", "function", "tool")
"""The keys of a tool's name in the forms in which models write calls without being asked to."""

N_TAIL: Final = 48
"""The number of tokens before a token that decide whether it is part of a name: a key, and a long name."""

_BEFORE: Final = re.compile(rb'"(?:%s)"\s*:\s*(?:"[^"]*)?\Z' % "|".join(NAME_KEYS).encode())


def is_in_name(pieces: Sequence[bytes]) -> bool:
    """Return True if the token after these tokens may be a part of a name, or the quote before it or after it."""
    return _BEFORE.search(b"".join(pieces[-N_TAIL:])) is not None
