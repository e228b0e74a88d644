"""The toy engine, whose intake some requests kill: `python -m tests.fragile_engine FD GENERATION`.

A text that contains POISON kills the engine while it is read, a schema that does while it is compiled, and the token
POISON_TOKEN while it becomes text.
"""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.engine.toy_constraint import N_VOCAB
from tests.toy_engine import ToyPrompts, load
from worker.engine.backend import Constraint, LoadedModel, Read
from worker.process.main import main
from worker.wire.messages import Configure, Conversation, Prompt, Submit, TokenId, Violation

POISON = "hemlock"
POISON_TOKEN = TokenId(N_VOCAB - 1)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class FragilePrompts(ToyPrompts):
    def read(self, prompt: Prompt, *, add_special: bool = True, parse_special: bool = True) -> Read | Violation:
        text = prompt.messages if isinstance(prompt, Conversation) else prompt
        if isinstance(text, str) and POISON in text:
            _die()
        return super().read(prompt, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[TokenId]) -> str | Violation:
        if POISON_TOKEN in tokens:
            _die()
        return super().detokenize(tokens)


def constrain(submit: Submit) -> Constraint | None:
    if POISON in (submit.json_schema or ""):
        _die()
    return None


def load_fragile(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
    return replace(load(config, on_progress), prompts=FragilePrompts(), constrain=constrain)


if __name__ == "__main__":
    main(load_fragile)
