"""Odd vocabularies: with gaps, over which llama.cpp loses characters or ends its process; and those that it refuses."""

from collections.abc import Sequence

from tests.gguf_files import Typed, Value
from tests.llama.tiny import BYTE, CONTROL, NORMAL, UNKNOWN

Keys = dict[str, Value]


def keys(tokenizer: str, tokens: Sequence[str], types: Sequence[int] | None = None, **more: Value) -> Keys:
    return {
        "tokenizer.ggml.model": tokenizer,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": Typed("f32", [0.0] * len(tokens)),
        "tokenizer.ggml.token_type": Typed("i32", types or [NORMAL] * len(tokens)),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


SPECIAL = ["<unk>", "<s>", "</s>"]
SPECIAL_TYPES = [UNKNOWN, CONTROL, CONTROL]
LETTERS = ["▁", "a", "b", "é", "😀", "ab", "▁a"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(0x80)]

NO_BYTES = keys("llama", [*SPECIAL, *LETTERS], [*SPECIAL_TYPES, *[NORMAL] * len(LETTERS)])

GAPPED: dict[str, Keys] = {
    "SentencePiece without bytes": NO_BYTES,
    "SentencePiece with half of the bytes": keys(
        "llama",
        [*SPECIAL, *BYTE_TOKENS, *LETTERS],
        [*SPECIAL_TYPES, *[BYTE] * len(BYTE_TOKENS), *[NORMAL] * len(LETTERS)],
    ),
    "SentencePiece without a space": keys("llama", [*SPECIAL, "a", "b"], [*SPECIAL_TYPES, NORMAL, NORMAL]),
    "SentencePiece without a space, which puts none before a text": keys(
        "llama", [*SPECIAL, "a", "b"], [*SPECIAL_TYPES, NORMAL, NORMAL], add_space_prefix=False
    ),
    "byte-level BPE with few letters": keys("gpt2", ["a", "b", "Ġ", "ab", "Ã©", "<x>"], merges=["a b", "Ã ©"]),
    "BPE with byte fallback without bytes": keys("gemma4", [*LETTERS, "<bos>"], merges=["a b"], bos_token_id=7),
    "RWKV with a token that only begins so": keys("rwkv", ["<s>", "ab", "a\\n", "b", "\\xc3\\xa9"]),
    "WordPiece with nothing for what is unknown": keys("bert", ["[PAD]", "▁a", "▁b", "b"]),
}

FULL = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a"]
FULL_TYPES = [*SPECIAL_TYPES, *[BYTE] * 256, NORMAL, NORMAL]


def spm(tokens: Sequence[str] = FULL, types: Sequence[int] = FULL_TYPES, **more: Value) -> Keys:
    """A whole SentencePiece vocabulary, and what is odd about it."""
    return keys("llama", tokens, types, **more)


def without(vocabulary: Keys, key: str) -> Keys:
    return {name: value for name, value in vocabulary.items() if name != f"tokenizer.ggml.{key}"}


def plamo2(left_out: str) -> Keys:
    tokens = [token for token in FULL if token != left_out]
    return keys("plamo2", tokens, [BYTE if token.startswith("<0x") else NORMAL for token in tokens])


REFUSED: dict[str, tuple[Keys, str]] = {
    "a doubled token": (spm([*FULL[:-1], "▁"]), "tokens 259 and 260 are both '▁'"),
    "a doubled token of BPE": (keys("gpt2", ["a", "b", "a"], merges=["a b"]), "tokens 0 and 2 are both 'a'"),
    "a doubled token of WordPiece": (keys("bert", ["[PAD]", "▁a", "▁a"]), "tokens 1 and 2 are both '▁a'"),
    "a doubled token of Unigram": (keys("t5", ["<pad>", "</s>", "<unk>", "<unk>"]), "tokens 2 and 3 are both"),
    "a doubled token of RWKV": (keys("rwkv", ["<s>", "\\n", "\\n"]), "tokens 1 and 2 are both"),
    "tokens that are alike up to a NUL": (spm([*FULL[:-2], "a\0b", "a\0c"]), "tokens 259 and 260 are both 'a'"),
    "a token that is the name of an empty one": (spm([*FULL[:-2], "[EMPTY_260]", ""]), "are both '[EMPTY_260]'"),
    "fewer types than tokens": (spm(types=FULL_TYPES[:-1]), "has 260 elements; the vocabulary has 261 tokens"),
    "types that are floats": (spm(token_type=Typed("f32", [1.0] * 261)), "must be an array of i32"),
    "one type": (spm(token_type=1), "must be an array of i32"),
    "fewer scores than tokens": (spm(scores=Typed("f32", [0.0] * 260)), "has 260 elements"),
    "scores that are texts": (spm(scores=["0"] * 261), "must be an array of f32 or i32"),
    "an end that is text": (spm(eos_token_id="</s>"), "type string, must be u32"),
    "an end that is signed": (spm(eos_token_id=Typed("i32", 2)), "type i32, must be u32"),
    "a flag that is a number": (spm(add_bos_token=1), "type u32, must be bool"),
    "BPE without merges": (keys("gpt2", ["a", "b"]), "'tokenizer.ggml.merges' is missing"),
    "BPE with byte fallback without merges": (keys("gemma4", ["a", "b"], pre="kimi-k2"), "is missing"),
    "merges that are numbers": (keys("gpt2", ["a", "b"], merges=[1, 2]), "must be an array of strings"),
    "suppressed tokens that are texts": (spm(suppress_tokens=["a"]), "must be an array of i32"),
    "a short byte": (spm(["b", *FULL[1:]], [BYTE, *FULL_TYPES[1:]]), "token 0, 'b', is a byte"),
    "a byte in WordPiece": (keys("bert", ["[PAD]", "<0x41>"], [NORMAL, BYTE]), "token 1 is a byte"),
    "PLaMo-2 without a byte": (plamo2("<0x7F>"), "the token of byte 0x7F is missing"),
    "a pre-tokenizer of another tokenizer's": (
        keys("gpt2", ["a", "b"], merges=["a b"], pre="whitespace"),
        "'tokenizer.ggml.pre' is 'whitespace'",
    ),
}
"""kind → (the tokenizer's keys, part of the line)"""

SERVED: dict[str, tuple[Keys, str]] = {
    "a whole one": (spm(), ""),
    "no types": (without(spm(), "token_type"), ""),
    "no scores": (without(spm(), "scores"), ""),
    "scores that are integers": (spm(scores=[0] * 261), ""),
    "PLaMo-2 with all bytes": (plamo2(""), ""),
    "more types than tokens": (spm(types=[*FULL_TYPES, NORMAL]), "token_type has 262 elements for 261 tokens"),
    "more scores than tokens": (spm(scores=Typed("f32", [0.0] * 300)), "scores has 300 elements for 261 tokens"),
    "empty tokens": (spm([*FULL[:-2], "", ""]), "2 of 261 tokens are empty"),
    "an end outside": (spm(eos_token_id=261), "eos_token_id is 261, outside the vocabulary of 261 tokens"),
    "a padding of -1": (spm(padding_token_id=2**32 - 1), f"padding_token_id is {2**32 - 1}, outside"),
    "Kimi K2 without merges": (keys("gpt2", ["a", "b"], pre="kimi-k2"), "bytes have no token"),
    "merges without a space": (
        keys("gpt2", ["a", "b"], merges=["ab", "", " ", "a b c"]),
        "bytes have no token",
    ),
}
"""kind → (the tokenizer's keys, part of a remark)"""
