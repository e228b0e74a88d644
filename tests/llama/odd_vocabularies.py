"""Odd vocabularies: with gaps, over which llama.cpp loses characters or ends its process; and those that it refuses.

odd_vocabularies.jsonl has one in each line. Among its tokens two numbers are the first and the last of byte tokens.
Scores are 0 and types follow from the tokens' names, unless `more` has others: `runs` are values and how often each
comes, null is none. `said`: a part of the refusal's line, or of a remark about what is served.
"""

import json
from pathlib import Path
from typing import Any

from tests.gguf_files import Typed, Value
from tests.llama.tiny import BYTE, CONTROL, NORMAL, UNKNOWN

Keys = dict[str, Value]
SPECIAL = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}


def _keys(told: dict[str, Any]) -> Keys:
    """The tokenizer's keys."""
    named = [each if isinstance(each, list) else [each] for each in told["tokens"]]
    spans = [[f"<0x{byte:02X}>" for byte in range(each[0], each[1] + 1)] if len(each) > 1 else each for each in named]
    tokens = [token for span in spans for token in span]
    types = [BYTE if token.startswith("<0x") else SPECIAL.get(token, NORMAL) for token in tokens]
    found: dict[str, Any] = {
        "model": told["tokenizer"],
        "tokens": tokens,
        "scores": Typed("f32", [0.0] * len(tokens)),
        "token_type": Typed("i32", types),
        **{key: _value(value) for key, value in told.get("more", {}).items()},
    }
    return {f"tokenizer.ggml.{key}": value for key, value in found.items() if value is not None}


def _value(told: Any) -> Any:
    if not isinstance(told, dict):
        return told
    value = [each for each, n in told["runs"] for _ in range(n)] if "runs" in told else told["value"]
    return Typed(told["type"], value) if "type" in told else value


_LINES = [json.loads(line) for line in Path(__file__).with_suffix(".jsonl").read_text().splitlines()]


def _all(verdict: str) -> dict[str, tuple[Keys, str]]:
    return {told["kind"]: (_keys(told), told.get("said", "")) for told in _LINES if told["verdict"] == verdict}


GAPPED = {kind: keys for kind, (keys, _) in _all("gapped").items()}
NO_BYTES = GAPPED["SentencePiece without bytes"]
REFUSED, SERVED = _all("refused"), _all("served")
"""kind → (the tokenizer's keys, what is said)"""
