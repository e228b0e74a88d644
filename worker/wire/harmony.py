"""The head of a message in harmony's form (gpt-oss, Muse): what it says of the text behind it.

Owns this meaning for both that read such answers: engine/channels.py by tokens, formats/read/messages.py in a text.
Pure.

    <|start|>assistant<|channel|>commentary to=functions.N <|constrain|>json<|message|>{...}<|call|>
             └ role ──┘          └ header ────────────────────────────────┘         └ body ┘

A head has a role, a header or both. The recipient stands in either and decides before the channel. Text in a channel
that is not known is reasoning. A head that no `<|message|>` ends is not shown, unless a reasoning mentions it.
"""

import re
from typing import Final, Literal

Body = Literal["content", "reasoning", "call", "unknown"]
"""The kind of a message's text. `unknown` is reasoning behind a head that may be none: a reasoning mentions it."""

_CHANNELS: Final[dict[str, Body]] = {
    "analysis": "reasoning",
    "commentary": "content",
    "final": "content",
    "response": "content",
}
_MAX_WORDS: Final = 2
"""The channel, and a type without its marker (`json`)."""
_NO_TOOLS: Final = ("", "user", "assistant")
_TO: Final = re.compile(r"(?:^|(?<=\s))to=(\S*?)(?=$|\s|<)")
_TYPE: Final = re.compile(r"<\|constrain\|>\s*\S*")
_BEGUN: Final = re.compile(r"[ \t\r\n]*(?:to=[^\s<]*[ \t\r\n]*|to|t)?")


def recipient_of(role: str, header: str | None) -> str:
    """Return the recipient, or nothing."""
    found = _TO.search(header or "") or _TO.search(role)
    return found[1] if found else ""


def body_of(role: str, header: str | None) -> Body:
    """Return the kind of the text behind a head. `header` is None if there is only a role."""
    recipient = recipient_of(role, header)
    if recipient == "self":
        return "reasoning"
    if recipient not in _NO_TOOLS:
        return "call"
    if header is None:
        return "content"
    words = _TO.sub(" ", _TYPE.sub(" ", header)).split()
    return _CHANNELS.get(words[0], "unknown") if 0 < len(words) <= _MAX_WORDS else "unknown"


def n_begun(text: str) -> int:
    """Return how many characters may go on with a role that the prompt has begun. Other text behind it is the answer's:
    the model has left out the head."""
    found = _BEGUN.match(text)
    return found.end() if found else 0


def mention(role: str, header: str | None, *, is_ended: bool) -> str:
    """Return a head in a reasoning as it was written, or nothing if it begins a message. `is_ended` says that a
    `<|message|>` ends it."""
    if is_ended and body_of(role, header) != "unknown":
        return ""
    spoken = f"<|start|>{role}" if role or header is None else ""
    return f"{spoken}{'' if header is None else f'<|channel|>{header}'}{'<|message|>' if is_ended else ''}"
