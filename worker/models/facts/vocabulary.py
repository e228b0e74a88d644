"""A vocabulary as its file has it: what llama.cpp would end its process over, and what no token spells.

Owns the rules of llama_vocab::impl::load and of the tokenizers (llama-vocab.cpp), kind by kind: what aborts there is
refused here, with one line; what only some texts meet is served, and `Gaps` says which texts.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from worker.models.facts.gguf import Metadata
from worker.models.facts.spelling import UTF8_BYTES, Gaps

TOKENS = "tokenizer.ggml.tokens"
TYPES = "tokenizer.ggml.token_type"
MERGES = "tokenizer.ggml.merges"
SCORES = "tokenizer.ggml.scores"
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
WHOLE_ARRAYS = frozenset({TOKENS, TYPES})
"""The arrays of a file that are read to their last element."""

BYTE_LEVEL_KINDS = ("gpt2", "gemma4", "hybriddna", "whitespace")
"""Values of tokenizer.ggml.model that llama.cpp reads with its BPE tokenizer."""
_WITHOUT_VOCABULARY = ("no_vocab", "none")
_SPELLED_WITH_ESCAPES = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
"""Pre-tokenizers whose BPE works on UTF-8 itself: ▁ is a space, <0xC3> a byte."""
_BYTE = 6
"""LLAMA_TOKEN_TYPE_BYTE (llama.h)."""
_SHORTEST_BYTE_TOKEN = 3
"""llama.cpp reads the digits of a byte token from its fourth byte on, and throws where there is none."""
_SPECIAL_IDS = tuple(
    f"tokenizer.ggml.{name}_token_id"
    for name in (
        *("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask", "prefix", "suffix", "middle"),
        *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
    )
)
_FLAGS = tuple(
    f"tokenizer.ggml.{name}"
    for name in (
        *("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces"),
        *("normalizer.lowercase", "normalizer.strip_accents"),
    )
)
_PHI3_TOKENS = (b"</s>", b"<unk>", b"<s>", b"<|endoftext|>")
"""llama.cpp looks these up in a model whose name says phi-3, and throws where one is missing."""
_SPACE = "▁"
_LONGEST_CHARACTER = 4
"""The most bytes of a character in UTF-8."""
_SHOWN_CHARS = 40


# ── the check of a file ──────────────────────────────────────────────────────────────────────────


def check_vocabulary(metadata: Metadata) -> "tuple[tuple[str, ...], Gaps | None]":
    """Check the vocabulary. Returns faults with which it can still be served, a sentence each, and its gaps.

    Raises: BadModelFile: llama.cpp could not load it, or would end its process.
    """
    tokenizer, pre = metadata.required_text("tokenizer.ggml.model"), metadata.text("tokenizer.ggml.pre") or ""
    if tokenizer in _WITHOUT_VOCABULARY:
        return (), None
    texts = tuple(_as_loaded(metadata.strings(TOKENS)))
    remarks = [*_check_lengths(metadata, len(texts)), *_check_ids(metadata, len(texts))]
    for key in _FLAGS:
        metadata.number(key, 1, low=0, default=0, kind="bool")
    _check_merges(metadata, tokenizer, pre)
    _check_doubles(metadata, texts)
    _check_byte_tokens(metadata, tokenizer, texts)
    _check_phi3(metadata, texts)
    n_empty = metadata.strings(TOKENS).count(b"")
    if n_empty:
        remarks.append(f"{n_empty} of {len(texts)} tokens are empty")
    gaps = gaps_of(tokenizer, pre, texts)
    if gaps is None:
        return tuple(remarks), None
    puts_space_before = metadata.number("tokenizer.ggml.add_space_prefix", 1, low=0, default=1, kind="bool")
    return (*remarks, str(gaps)), replace(gaps, puts_space_before=bool(puts_space_before))


def _as_loaded(texts: Iterable[bytes]) -> Iterable[bytes]:
    """llama.cpp takes them as C strings, and names the empty ones."""
    for token, text in enumerate(texts):
        yield text.partition(b"\0")[0] or b"[EMPTY_%d]" % token


def _check_lengths(metadata: Metadata, n_tokens: int) -> Iterable[str]:
    for key, kinds in ((TYPES, ("i32",)), (SCORES, ("f32", "i32"))):
        n = metadata.n_numbers(key, kinds)
        if n is not None and n < n_tokens:
            raise metadata.error(f"metadata key {key!r} has {n} elements; the vocabulary has {n_tokens} tokens")
        if n is not None and n > n_tokens:
            yield f"{key} has {n} elements for {n_tokens} tokens; the last ones are ignored"
    metadata.n_numbers("tokenizer.ggml.suppress_tokens", ("i32",))
    metadata.n_numbers(CHARSMAP, ("i8", "u8"))


def _check_ids(metadata: Metadata, n_tokens: int) -> Iterable[str]:
    """llama.cpp does not take an id outside, and goes on with one of its own or with none; published files have them
    (a padding of -1)."""
    for key in _SPECIAL_IDS:
        token = metadata.number(key, 2**32 - 1, low=0, default=0)
        if token >= n_tokens:
            yield f"{key} is {token}, outside the vocabulary of {n_tokens} tokens, and is ignored"


def _check_merges(metadata: Metadata, tokenizer: str, pre: str) -> None:
    if tokenizer not in BYTE_LEVEL_KINDS:
        return
    if pre == "whitespace" != tokenizer:
        # Two spaces in a text would be an assert: find_bpe_rank.
        raise metadata.error(
            f"metadata key 'tokenizer.ggml.pre' is 'whitespace'; with tokenizer {tokenizer!r} that fails"
        )
    if metadata.has(MERGES):
        metadata.n_strings(MERGES)  # a merge without a space in it merges nothing
    elif pre != "kimi-k2" or tokenizer == "gemma4":
        raise metadata.error(f"metadata key {MERGES!r} is missing; tokenizer {tokenizer!r} needs it")


def _check_doubles(metadata: Metadata, texts: Sequence[bytes]) -> None:
    """GGML_ASSERT(id_to_token.size() == token_to_id.size()), whatever the tokenizer."""
    first: dict[bytes, int] = {}
    for token, text in enumerate(texts):
        if (other := first.setdefault(text, token)) != token:
            raise metadata.error(f"metadata key {TOKENS!r}: tokens {other} and {token} are both {_shown(text)}")


def _check_byte_tokens(metadata: Metadata, tokenizer: str, texts: Sequence[bytes]) -> None:
    types = metadata.whole_numbers(TYPES)
    byte_tokens = [token for token, kind in enumerate(types[: len(texts)]) if kind == _BYTE]
    if tokenizer == "bert" and byte_tokens:
        raise metadata.error(f"metadata key {TYPES!r}: token {byte_tokens[0]} is a byte, which WordPiece does not have")
    if tokenizer in ("llama", "t5", *BYTE_LEVEL_KINDS):
        for token in byte_tokens:
            if len(texts[token]) < _SHORTEST_BYTE_TOKEN:
                raise metadata.error(
                    f"metadata key {TYPES!r}: token {token}, {_shown(texts[token])}, is a byte; "
                    "the text of a byte has the form '<0x41>'"
                )
    if tokenizer == "plamo2":
        # Token 0 is taken for none.
        spelled = {texts[token] for token in byte_tokens if token > 0}
        missing = [byte for byte in range(256) if not {_byte_token(byte), _byte_token(byte).lower()} & spelled]
        if missing:
            raise metadata.error(f"metadata key {TOKENS!r}: the token of byte 0x{missing[0]:02X} is missing")


def _check_phi3(metadata: Metadata, texts: Sequence[bytes]) -> None:
    name = (metadata.remark("general.name") or "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return
    for text in _PHI3_TOKENS:
        if text not in texts:
            raise metadata.error(
                f"metadata key {TOKENS!r} lacks {_shown(text)}, which llama.cpp needs in a Phi-3 model"
            )


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="replace")[:_SHOWN_CHARS])


# ── what no token spells ─────────────────────────────────────────────────────────────────────────


def gaps_of(tokenizer: str, pre: str, texts: Collection[bytes]) -> Gaps | None:
    """The gaps of the vocabulary; None if it lacks no byte, or has a token for unknown text."""
    known = frozenset(texts)
    if tokenizer == "llama":
        return _gaps_of_escaped(known, is_deadly=True)
    if tokenizer == "rwkv":
        return _gaps_of_rwkv(known)
    if tokenizer == "gemma4" or (tokenizer == "gpt2" and pre in _SPELLED_WITH_ESCAPES):
        return _gaps_of_escaped(known, is_deadly=False)
    if tokenizer == "gpt2":
        missing = frozenset(byte for byte in UTF8_BYTES if _BYTE_LEVEL[byte].encode() not in known)
        return Gaps(missing, frozenset(), frozenset()) if missing else None
    return None


def _gaps_of_escaped(known: Collection[bytes], *, is_deadly: bool) -> Gaps | None:
    """The gaps of SentencePiece, and of BPE that spells bytes in the same way. Source: llama_vocab::byte_to_token."""
    missing = frozenset(
        byte for byte in UTF8_BYTES if _byte_token(byte) not in known and not (is_deadly and bytes([byte]) in known)
    )
    if not missing:
        return None
    short = (text.decode(errors="surrogateescape") for text in known if len(text) <= _LONGEST_CHARACTER)
    whole = frozenset(text for text in short if len(text) == 1)
    return Gaps(missing, missing if is_deadly else frozenset(), whole, _SPACE)


def _gaps_of_rwkv(known: Collection[bytes]) -> Gaps | None:
    """llm_tokenizer_rwkv_session goes back to the start of the text where a token begins so and none ends there."""
    spelled = {_ESCAPE.sub(_unescaped, text) for text in known}
    missing = frozenset(byte for byte in UTF8_BYTES if bytes([byte]) not in spelled)
    begun = {text[0] for text in spelled if text}
    return Gaps(missing, missing & begun, frozenset()) if missing else None


def _byte_token(byte: int) -> bytes:
    return b"<0x%02X>" % byte


_ESCAPE = re.compile(rb"\\(?:x(..)|(.))", re.DOTALL)
_NAMED_ESCAPES = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def _unescaped(match: re.Match[bytes]) -> bytes:
    """Source: llama_unescape_rwkv_token."""
    if match[1] is None:
        return _NAMED_ESCAPES.get(match[2], match[2])
    return bytes([int(match[1], 16)]) if re.fullmatch(rb"[0-9a-f]{2}", match[1]) else b""


_OWN_LETTERS = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = iter(range(0x100, 0x200))
_BYTE_LEVEL = {byte: chr(byte if byte in _OWN_LETTERS else next(_OTHERS)) for byte in range(256)}
"""The letter that stands for each byte in a byte-level vocabulary. Source: unicode_byte_to_utf8_map."""
