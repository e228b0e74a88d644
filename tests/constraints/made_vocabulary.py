"""A vocabulary that is made for a test: every byte, words of several bytes, and control tokens of any name."""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from worker.constraints.vocabulary import Vocabulary
from worker.wire.chat_format import ChatFormat
from worker.wire.jobs import TokenId

END = "<|im_end|>"
_WORDS = (
    "\n\n",
    ">\n",
    '{"',
    '"}',
    '"}}',
    '": ',
    '", "',
    " = ",
    "</",
    "name",
    "arguments",
    "get",
    "_weather",
    "},",
    "é",
    "世界",
)
_MARKER = re.compile(r"\]<\]\w+\[>\[|<[^<>\s]+>|\[[A-Z_/]+\]")


class MadeVocabulary:
    """Control tokens come last; END is one of them, and ends an answer."""

    def __init__(self, controls: Iterable[str] = (), words: Sequence[str] = _WORDS, ends: Iterable[str] = ()) -> None:
        self.pieces = [bytes([value]) for value in range(256)] + [word.encode() for word in words]
        self.words = {word: TokenId(256 + place) for place, word in enumerate(words)}
        names = list(dict.fromkeys([*controls, *ends, END]))
        self.controls = {name: TokenId(len(self.pieces) + place) for place, name in enumerate(names)}
        self.names = {token: name for name, token in self.controls.items()}
        self.ends = np.array(sorted(self.controls[name] for name in (*ends, END)), np.intp)
        self.pieces += [b""] * len(names)
        self._by_piece = {piece: token for token, piece in reversed(list(enumerate(self.pieces))) if piece}

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(
            pieces=self.pieces,
            ends=self.ends,
            piece=lambda token: self.pieces[token],
            name=lambda token: self.names[token].encode() if token in self.names else self.pieces[token],
            token_of=lambda text: self.controls.get(text, self._token(text)),
            spell=self.spell,
        )

    def _token(self, text: str) -> TokenId | None:
        found = self._by_piece.get(text.encode())
        return None if found is None else TokenId(found)

    def spell(self, data: bytes) -> list[int]:
        """The longest token first."""
        tokens: list[int] = []
        while data:
            size = next(size for size in range(min(16, len(data)), 0, -1) if data[:size] in self._by_piece)
            tokens.append(self._by_piece[data[:size]])
            data = data[size:]
        return tokens

    def tokens(self, text: str) -> list[int]:
        """A text with control tokens where it has their names."""
        names = "|".join(map(re.escape, sorted(self.controls, key=len, reverse=True)))
        parts = re.split(f"({names})", text)
        return [
            token
            for part in parts
            for token in ([int(self.controls[part])] if part in self.controls else self.spell(part.encode()))
        ]

    def shown(self, tokens: Iterable[int]) -> bytes:
        """The text of the tokens, control tokens by their names."""
        return b"".join(
            self.names[TokenId(token)].encode() if token in self.names else self.pieces[token] for token in tokens
        )


def markers_of(form: ChatFormat) -> list[str]:
    """Return the parts of a form's markers that could be control tokens."""
    calls = form.calls
    assert calls is not None
    texts = [getattr(calls, name) for name in calls.__struct_fields__ if isinstance(getattr(calls, name), str)]
    harmony = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"] if calls.form == "harmony" else []
    if calls.form == "harmony" and calls.parameter_begin:
        harmony = ["<|start|>", "<|message|>", "<|eom|>"]
    return list(dict.fromkeys([*(found for text in texts for found in _MARKER.findall(text)), *harmony]))
