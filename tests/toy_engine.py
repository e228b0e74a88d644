"""A real engine process around the readable fake backend: real sockets, threads and signals, no model, loaded at once.

    python -m tests.toy_engine [KIND] FD GENERATION

KIND, else `Configure.model_path`, says what it is like: TOY, as any file is; LOUD: each token is 64 KiB of text;
BROKEN: its first step raises; LEAVING: it lies on a GPU, and no more from the second question on; UNLOADABLE, TOO_BIG,
STARVED: it cannot be loaded, and UNLOADABLE warns of that before; KEEPING: what it keeps outlives it, and it has found
something; SLOW: steps that read a long prompt go on until one is stopped; HOSTILE: each job is told ANSWER again and
again, a few bytes with each token; TALKATIVE: its library has a mebibyte to say at every step, more than anybody reads;
THINKING: its model thinks before it answers, as gpt-oss does, by SCRIPT; PREAMBLE: so does this one, and says what it
does before it answers, by PREAMBLE_SAID; UNCLOSED: its model calls a tool in a thought that it does not close, as
Qwen 3 does; FRAGILE: it dies of POISON in a text that is read or a schema that is compiled, and of POISON_TOKEN when
that becomes text.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as replaced
from functools import partial
from itertools import chain, repeat
from typing import Any

import msgspec
from msgspec.structs import replace

from tests.engine.fake_runner import FakeRunner, ToyModel
from tests.engine.toy_constraint import N_VOCAB
from tests.hostile_texts import TEXTS
from tests.server.front.rehearsal import FACTS
from worker.config.engine_settings import Configure
from worker.engine.backend import Found, LoadedModel, Meanwhile, Read, do_nothing
from worker.engine.families import marks_among
from worker.engine.step import Constraint, Sampled, Step
from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.server.process.main import main
from worker.wire.chat_format import HERMES, ReasoningFormat
from worker.wire.jobs import Prompt, SlotId, Submit, TokenId
from worker.wire.load import Residency
from worker.wire.messages import Violation
from worker.wire.prompts import Conversation, Infill

TOY, LOUD, BROKEN, LEAVING, UNLOADABLE, TOO_BIG = "toy", "loud", "broken", "leaving", "unloadable", "too big"
STARVED, KEEPING, SLOW = "starved", "keeping", "slow"
GIVING, GIVEN_BACK = "giving", "the toy gave memory back"
WARNING = "the toy is 100% tin"
HOSTILE, TALKATIVE, THINKING, FRAGILE = "hostile", "talkative", "thinking", "fragile"
PREAMBLE, UNCLOSED = "preamble", "unclosed"

ON_A_GPU = replace(FACTS, backend="cuda", memory_architecture="vram-only", memory_bytes=1000)
THERE, GONE = Residency(is_resident=True, memory_bytes=1000), Residency(is_resident=False, memory_bytes=30)

LOUD_BYTES = 64 * 1024
LONG = 256
"""The number of tokens that SLOW reads in one step, without an end if it is not stopped."""
PATIENCE_S = 60.0

ANSWER = "\n\n".join(TEXTS)
PIECE_BYTES = 7
PIECES: dict[str, Sequence[bytes]] = {
    LOUD: [b"x" * LOUD_BYTES],
    HOSTILE: [ANSWER.encode()[at : at + PIECE_BYTES] for at in range(0, len(ANSWER.encode()), PIECE_BYTES)],
}
"""The pieces that each job draws, one by one, again and again."""
STEP_BYTES = 1024 * 1024
LINE = "llama.cpp warning: " + "x" * 4000 + "\n"

MARKS = marks_among(
    {name: TokenId(40 + at) for at, name in enumerate(("<|channel|>", "<|message|>", "<|start|>", "<|end|>"))}
)
_IDS = {name: token for token, name in MARKS.names.items()}
_END = TokenId(63)


def _channel(name: str, *said: str) -> tuple[str, ...]:
    return ("<|channel|>", name, "<|message|>", *said)


_NEXT = ("<|end|>", "<|start|>", "assistant")
SAID = (*_channel("analysis", "The user", " greets."), *_NEXT, *_channel("final", "Hel", "lo!"))
PREAMBLE_SAID = (
    *(*_channel("analysis", "Hm", ".\n", "So."), *_NEXT, *_channel("commentary", "I look", " first."), *_NEXT),
    *(*_channel("??", "A stray", " word."), *_NEXT, *_channel("final", " It is", " here.", "\nBye.")),
)
UNCLOSED_SAID = (
    *("<think>", "\nI plan.", "\n", "<tool", "_call>\n", '{"name": "look', '", "arguments": {"at', '": "x"}}'),
    *("\n</tool", "_call>"),
)
THINKING_HERMES = replace(HERMES, reasoning=ReasoningFormat(begin="<think>\n", end="\n</think>\n\n"))

Script = list[tuple[TokenId, bytes]]


def _script_of(said: Sequence[str]) -> Script:
    return [*((_IDS.get(one, TokenId(3)), b"" if one in _IDS else one.encode()) for one in said), (_END, b"")]


SCRIPT = _script_of(SAID)
SCRIPTS = {THINKING: SCRIPT, PREAMBLE: _script_of(PREAMBLE_SAID), UNCLOSED: _script_of(UNCLOSED_SAID)}
"""The tokens that each job draws, one by one; control tokens have no text, as in the library."""


def first_draws(step: Step, sampled: Sequence[Sampled]) -> Iterator[tuple[Sampled, int]]:
    """Each slot's first draw, because no draft is ever right, and the number of tokens drawn before it."""
    first = {one.slot: one for one in reversed(sampled)}
    return ((first[each.slot], len(each.generated)) for each in step.slices if each.slot in first)


class ToyRunner(FakeRunner):
    """A step is as its kind has it."""

    kind = TOY
    _is_stopped = threading.Event()

    def run(self, step: Step, meanwhile: Meanwhile = do_nothing) -> list[Sampled]:
        if self.kind == BROKEN:
            raise RuntimeError("llama_decode failed with code -3")
        if self.kind == SLOW and step.n_tokens == LONG:
            assert self._is_stopped.wait(PATIENCE_S), "the step is in somebody's way"
        if self.kind == TALKATIVE:
            sys.stderr.write(LINE * (STEP_BYTES // len(LINE)))
            sys.stderr.flush()
        sampled = super().run(step, meanwhile)
        if pieces := PIECES.get(self.kind):
            return [replace(one, piece=pieces[n_said % len(pieces)]) for one, n_said in first_draws(step, sampled)]
        if script := SCRIPTS.get(self.kind):
            drawn = ((one, *script[min(n_said, len(script) - 1)]) for one, n_said in first_draws(step, sampled))
            return [replace(one, token=token, piece=piece, is_end=token == _END) for one, token, piece in drawn]
        return sampled

    def request_abort(self) -> None:
        super().request_abort()
        self._is_stopped.set()


def load(config: Configure, on_progress: Callable[[int], None], kind: str | None = None) -> LoadedModel:
    kind = kind or config.model_path
    on_progress(0)
    if kind == UNLOADABLE:
        logging.getLogger("worker.models.loading").warning(WARNING)
        raise ModelLoadFailed("the toy is unloadable")
    if kind == TOO_BIG:
        raise InsufficientMemory("the toy is too big", needed_bytes=8, available_bytes=4)
    if kind == STARVED:
        raise ImportError("a page of advice") from OSError("failed to map segment\nfrom shared object")
    on_progress(100)
    return keeping() if kind == KEEPING else _loaded(kind)


def _loaded(kind: str) -> LoadedModel:
    runner = ToyRunner(
        ToyModel(), n_slots=FACTS.parallel, n_cells=FACTS.n_cells, chunk=FACTS.prefill_chunk, widest_step=LONG
    )
    runner.kind = kind
    toy = LoadedModel(runner, ToyPrompts(), lambda _: None, FACTS)
    answers = chain([THERE], repeat(GONE))
    of_kind: dict[str, dict[str, Any]] = {
        SLOW: {"facts": replace(FACTS, step_s=10.0), "widest_step": LONG},
        LEAVING: {"facts": ON_A_GPU, "residency": lambda: next(answers)},
        THINKING: {"marks": MARKS},
        PREAMBLE: {"marks": MARKS},
        UNCLOSED: {"facts": replace(FACTS, model=replace(FACTS.model, chat_format=THINKING_HERMES))},
        GIVING: {"give_back": lambda: logging.getLogger("worker.llama").warning(GIVEN_BACK)},
        FRAGILE: {"prompts": FragilePrompts(), "constrain": fragile_constrain},
    }
    return replaced(toy, **of_kind.get(kind, {}))


def keeping() -> LoadedModel:
    """Its last words are how many cells had been copied out when it was asked to write what is left."""
    runner = FakeRunner(ToyModel(), n_slots=FACTS.parallel + 1, n_cells=FACTS.n_cells, chunk=FACTS.prefill_chunk)

    def flush(_timeout_s: float) -> None:
        sys.stderr.write(f"{runner.kv.n_saved} cells are kept")
        sys.stderr.flush()

    return LoadedModel(
        runner,
        ToyPrompts(),
        lambda _: None,
        FACTS,
        retained_slots=(SlotId(FACTS.parallel),),
        find=lambda tell: tell(Found((), 3, "they were broken")),
        flush=flush,
    )


class ToyPrompts:
    """A token for each byte; the template is the contents of the messages, one behind the other."""

    def read(self, prompt: Prompt, *, add_special: bool = True, parse_special: bool = True) -> Read | Violation:
        if isinstance(prompt, str) and "unreadable" in prompt:
            return Violation("prompt", "vocabulary", "the vocabulary lacks a character")
        if isinstance(prompt, str):
            return Read([TokenId(byte % N_VOCAB) for byte in prompt.encode()], prompt)
        if isinstance(prompt, Conversation):
            messages = msgspec.json.decode(prompt.messages)
            if any("refuse me" in str(message["content"]) for message in messages):
                return Violation("messages", "chat_template", "the chat template refuses the conversation")
            return self.read("".join(str(message["content"]) for message in messages))
        if isinstance(prompt, Infill):
            return self.read(f"{prompt.prefix}{prompt.begun}|{prompt.suffix}|")
        return self._outside(prompt) or Read(list(prompt), None)

    def detokenize(self, tokens: Sequence[TokenId]) -> str | Violation:
        return self._outside(tokens) or "".join(map(chr, tokens))

    def _outside(self, tokens: Sequence[TokenId]) -> Violation | None:
        is_inside = all(0 <= token < N_VOCAB for token in tokens)
        return None if is_inside else Violation("tokens", f"vocabulary({N_VOCAB})", "an id is outside the vocabulary")


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


def fragile_constrain(submit: Submit) -> Constraint | None:
    if POISON in (submit.sampling.json_schema or ""):
        _die()
    return None


if __name__ == "__main__":
    of_kind = sys.argv.pop(1) if len(sys.argv) > 2 else None
    main(partial(load, kind=of_kind))
