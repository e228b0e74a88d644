"""Models of the size of a test's for traces: random weights, so that each token depends on all before it."""

from pathlib import Path
from typing import Literal, get_args

from tests.default_model import default_file
from tests.gguf_files import Q4_1, Typed, Value
from tests.llama.random_models import HYBRID, PLAIN, SLIDING, Kind, write_random
from tests.llama.tiny import BYTE, CONTROL, NORMAL, UNKNOWN

N_CTX = 2048
"""The trained length: the longest of a trace's conversations fits, and a few long answers fill it."""

Name = Literal["attention", "window", "hybrid", "default"]
ALL: tuple[Name, ...] = get_args(Name)
NAMES: tuple[Name, ...] = ("attention", "window", "hybrid")
"""Those that a campaign takes unless it is asked for others: a token of the default model takes a hundred times as
long."""
_KINDS: dict[Name, Kind] = {"attention": PLAIN, "window": SLIDING, "hybrid": HYBRID}

_USER_DEFINED = 4
_CONTROLS = ("<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_LETTERS = 'abcdefghijklmnopqrstuvwxyz0123456789.,:"{}[]() \n'
"""Characters that are tokens of their own, so that about one token in six is readable."""
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_MULTIPLE = 16

TEMPLATE = Path(__file__).with_name("template.jinja").read_text(encoding="utf-8").removesuffix("\n")


def model(folder: Path, name: Name, *, seed: int = 1) -> Path:
    """The file of that model in the folder, which is written if it is not there. Another seed gives other weights. The
    default model lies where `make model` put it.
    """
    if name == "default":
        return default_file()
    path = folder / f"{name}-{seed}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".part")
        kind = _KINDS[name]
        write_random(fresh, kind, seed=seed, tokenizer=_tokenizer(), n_ctx=N_CTX, matrix_type=Q4_1).rename(path)
    return path


def _tokens() -> list[str]:
    tokens = ["<unk>", "<s>", "</s>", *_BYTES, *_LETTERS.replace(" ", "▁")]
    n_more = -(len(tokens) + len(_CONTROLS) + len(MARKS)) % _MULTIPLE
    words = [f"{a}{b}" for a in "xyz" for b in "abcdefgh"][:n_more]
    return [*tokens, *words, *_CONTROLS, *MARKS]


def _tokenizer() -> dict[str, Value]:
    tokens = _tokens()
    types = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
    types |= dict.fromkeys(_BYTES, BYTE) | dict.fromkeys(_CONTROLS, CONTROL) | dict.fromkeys(MARKS, _USER_DEFINED)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": Typed("f32", [0.0] * len(tokens)),
        "tokenizer.ggml.token_type": [types.get(token, NORMAL) for token in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": TEMPLATE,
    }
