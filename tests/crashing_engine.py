"""The real engine on the real model, except that some prompts make it misbehave.

    python -m tests.crashing_engine GATES FD GENERATION

A prompt that begins with `marker(KIND)`, a special token that text never gives, has CRASHES[KIND] or PRANKS[KIND] done
after its prefill step and before that step is reported. Most crashes are a call of the raw binding, past every check of
ours, that llama.cpp answers with an abort or a segfault. A prompt that begins with STALL waits at its first decode
step, once it has sent a token. Where the engine waits is a gate: a file in the directory GATES; the gate is shut while
the file exists.
"""

import ctypes
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from llama_cpp import llama_cpp as capi

from tests.gates import Gates
from worker.config.engine_settings import Configure
from worker.engine.backend import LoadedModel, Meanwhile, do_nothing
from worker.engine.step import Sampled, Slice, Step
from worker.llama.runner import LlamaRunner
from worker.models.loading.load import load_model
from worker.server.process.main import main
from worker.wire.jobs import SlotId, TokenId

DEATH = "death"
"""The gate that an engine which loads dies at, if it is shut."""

T = TypeVar("T")

FLOOD_BYTES = 4 * 1024 * 1024
LAST_LINE = "the last line of a flood"


# ── what a prompt can ask for ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Raw:
    """The library's own handles, as our choke-point hides them. Any: opaque pointers."""

    context: Any
    vocab: Any
    n_batch: int


def _sequence_out_of_range(raw: Raw) -> None:
    capi.llama_memory_seq_rm(capi.llama_get_memory(raw.context), 9999, 0, -1)


def _grammar_trigger_no_regex(raw: Raw) -> None:
    patterns = (ctypes.c_char_p * 1)(b"[")
    capi.llama_sampler_init_grammar_lazy_patterns(raw.vocab, b'root ::= "a"', b"root", patterns, 1, None, 0)


def _null_context(_raw: Raw) -> None:
    capi.llama_n_ctx(None)


def _nested_grammar(raw: Raw) -> None:
    depth = 20_000
    capi.llama_sampler_init_grammar(raw.vocab, b"root ::= " + b"(" * depth + b'"a"' + b")" * depth, b"root")


def _garbage_to_the_front(_raw: Raw) -> None:
    os.write(int(sys.argv[1]), b"\xff" * 64)
    while True:
        time.sleep(1)


def flood() -> None:
    line = b"the library has a lot to say \xf0\x9f\x8c\x8a\n"
    sys.stderr.buffer.write(line * (FLOOD_BYTES // len(line)) + LAST_LINE.encode())
    sys.stderr.flush()


def _tokens_nobody_knows_of(raw: Raw) -> None:
    """The third slot has the first one's tokens, too."""
    capi.llama_memory_seq_cp(capi.llama_get_memory(raw.context), 0, 2, 0, -1)


CRASHES: dict[str, Callable[[Raw], None]] = {
    "sequence out of range": _sequence_out_of_range,
    "grammar trigger no regex": _grammar_trigger_no_regex,
    "null context": _null_context,
    "nested grammar": _nested_grammar,
    "garbage to the front": _garbage_to_the_front,
}
PRANKS: dict[str, Callable[[Raw], None]] = {
    "tokens nobody knows of": _tokens_nobody_knows_of,
}

STALL, *_MARKERS = (
    *("<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>"),
)
"""Special tokens of the default model that no text and no answer contains."""


def marker(kind: str) -> str:
    """The beginning of a prompt that asks for the misdeed."""
    return dict(zip(CRASHES | PRANKS, _MARKERS, strict=True))[kind]


# ── the engine ───────────────────────────────────────────────────────────────────────────────────


class CrashingRunner:
    """The real runner, watched for markers. A vocabulary without these tokens has none."""

    def __init__(self, runner: LlamaRunner, gates: Gates) -> None:
        self._runner = runner
        self._gates = gates
        self._stalling: set[SlotId] = set()
        self._stall = self._tokens({STALL: STALL})
        self._crashes = self._tokens({marker(kind): crash for kind, crash in CRASHES.items()})
        self._pranks = self._tokens({marker(kind): prank for kind, prank in PRANKS.items()})

    def _tokens(self, of_marker: dict[str, T]) -> dict[TokenId, T]:
        spelled = {text: self._runner.model.tokenize(text) for text in of_marker}
        return {tokens[0]: of_marker[text] for text, tokens in spelled.items() if len(tokens) == 1}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, step: Step, meanwhile: Meanwhile = do_nothing) -> list[Sampled]:
        if step.kind == "decode":
            if any(slice_.slot in self._stalling for slice_ in step.slices):
                self._gates.wait("decode")
            return self._runner.run(step, meanwhile)
        sampled = self._runner.run(step, meanwhile)
        for slice_ in step.slices:
            self._look_for_markers(slice_)
        return sampled

    def _look_for_markers(self, slice_: Slice) -> None:
        if slice_.start == 0:
            self._stalling.discard(slice_.slot)
        model, context = self._runner.model, self._runner.context
        raw = Raw(context.handle, model.vocab, context.n_batch)
        for token in slice_.tokens:
            if token in self._stall:
                self._stalling.add(slice_.slot)
            elif token in self._pranks:
                self._pranks[token](raw)
            elif token in self._crashes:
                self._gates.wait("crash")
                self._crashes[token](raw)
                raise AssertionError("llama.cpp has survived it")


if __name__ == "__main__":
    gates = Gates(Path(sys.argv.pop(1)))

    def load(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
        on_progress(0)
        gates.wait("load")
        if gates.is_shut(DEATH):
            flood()
            os.abort()
        loaded = load_model(config, on_progress)
        assert isinstance(loaded.runner, LlamaRunner)
        return replace(loaded, runner=CrashingRunner(loaded.runner, gates))

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(load)
