"""Level `tokenizer`: the ids of llama.cpp and of the reference tokenizer for every hard text.

Some texts are special cases. Some bytes are in no token of a vocabulary, and the tokenizers omit them at different
moments: the reference before it merges, so that their neighbours may become one token, llama.cpp after. A text with
surrogates cannot be given to a reference at all, nor can one that is not UTF-8 where llama.cpp spells its bytes one by
one (SentencePiece) instead of replacing them; these are only tokenised.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from parity.bounds import Bounds
from parity.corpus import HardText, decode, has_reference
from parity.report import Check, Level, Table, judged

NAME = "tokenizer"
_N_SHOWN = 20

Tokenize = Callable[[bytes], Sequence[int]]
Piece = Callable[[int], bytes]
Joined = Callable[[Sequence[int]], bytes]


@dataclass(frozen=True, slots=True)
class _Tokenised:
    """One text on both sides."""

    text: HardText
    ids: Sequence[int]
    reference_ids: Sequence[int]
    characters: "_Characters"

    @property
    def is_in_vocabulary(self) -> bool:
        """True if every character of the text has tokens that reproduce it. Call it for few texts, because it may take
        long."""
        return self.characters.has_all_of(decode(self.text.data))

    @property
    def differs_at(self) -> int | None:
        """The first position with another id, or where one side ends; None where all are the same."""
        both = enumerate(zip_longest(self.ids, self.reference_ids))
        return next((at for at, (found, expected) in both if found != expected), None)


def run(
    tokenize: Tokenize,
    reference_ids: Sequence[Sequence[int]],
    texts: Sequence[HardText],
    bounds: Bounds,
    *,
    piece: Piece,
    joined: Joined | None = None,
) -> Level:
    """Compare `tokenize(texts[i].data)` with `reference_ids[i]`. `piece`: a token's bytes, empty for control tokens; a
    ValueError for an id that llama.cpp's vocabulary has not. `joined`: the bytes of several, where they are more than
    those of each.

    Raises: ValueError where there are not as many lists of ids as texts.
    """
    joined = joined or (lambda ids: b"".join(map(piece, ids)))
    characters = _Characters(tokenize, joined)
    found = [
        _Tokenised(text, tokenize(text.data), ids, characters) for text, ids in zip(texts, reference_ids, strict=True)
    ]
    compared = [one for one in found if _can_be_compared(one.text.data, tokenize)]
    checks = [
        _check(bounds, "texts whose ids differ", "differ", compared, piece, is_in_vocabulary=True),
        _check(
            bounds,
            "texts with bytes that the vocabulary lacks, whose ids differ",
            "differ_outside_vocabulary",
            compared,
            piece,
            is_in_vocabulary=False,
        ),
    ]
    n_ids = sum(len(one.reference_ids) for one in compared)
    return judged(
        NAME,
        f"{sum(one.differs_at is None for one in compared)} of {len(compared)} texts are the same ids, {n_ids} in all",
        checks if compared else (),
        tables=(_differences(compared, piece),),
    )


def _can_be_compared(data: bytes, tokenize: Tokenize) -> bool:
    if not has_reference(data):
        return False
    text = decode(data).encode()
    return text == data or tokenize(data) == tokenize(text)


class _Characters:
    """The characters of the vocabulary: those that their own tokens reproduce."""

    def __init__(self, tokenize: Tokenize, joined: Joined) -> None:
        self._tokenize = tokenize
        self._joined = joined
        self._known: dict[str, bool] = {}

    def has_all_of(self, text: str) -> bool:
        return all(map(self._has, set(text)))

    def _has(self, character: str) -> bool:
        if character not in self._known:
            data = character.encode()
            # A tokenizer of the SentencePiece kind puts a space in front.
            self._known[character] = self._joined(self._tokenize(data)).endswith(data)
        return self._known[character]


def _check(
    bounds: Bounds, what: str, key: str, compared: Sequence[_Tokenised], piece: Piece, *, is_in_vocabulary: bool
) -> Check:
    differing = [one for one in compared if one.differs_at is not None and one.is_in_vocabulary is is_in_vocabulary]
    note = ""
    if differing:
        at, ours, theirs = _difference(differing[0], piece)
        note = f"{differing[0].text.name} at token {at}: llama.cpp {ours}, the reference {theirs}"
    return bounds.check(what, len(differing), f"{NAME}.{key}", note=note)


def _difference(found: _Tokenised, piece: Piece) -> tuple[str, str, str]:
    """Position, and both ids there with their pieces, of a text that differs."""
    at = found.differs_at or 0
    return str(at), _shown(found.ids[at : at + 1], piece), _shown(found.reference_ids[at : at + 1], piece)


def _shown(ids: Sequence[int], piece: Piece) -> str:
    if not ids:
        return "nothing"
    try:
        text = piece(ids[0]).decode(errors="backslashreplace")
    except ValueError:
        return f"an id outside the vocabulary ({ids[0]})"
    return f"{text!r} ({ids[0]})"


def _differences(compared: Sequence[_Tokenised], piece: Piece) -> Table:
    differing = [one for one in compared if one.differs_at is not None]
    rows = tuple((one.text.name, *_difference(one, piece)) for one in differing[:_N_SHOWN])
    left_out = len(differing) - len(rows)
    columns = ("text", ">token", "llama.cpp", "reference")
    return Table("Where ids begin to differ", columns, rows, f"{left_out} more." if left_out else "")
