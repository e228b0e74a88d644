"""The real engine on the real model, except that some prompts make it misbehave.

    python -m tests.crashing_engine FD GENERATION

A prompt that begins with `marker(KIND)`, a special token that text never gives, has CRASHES[KIND] or PRANKS[KIND] done
after its prefill step and before that step is reported. Most crashes are a call of the raw binding, past every check of
ours, that llama.cpp answers with an abort or a segfault. A prompt that begins with STALL waits at its first decode
step, once it has sent a token. Where the engine waits is a gate: a file in the directory that GATES_DIR names; the gate
is shut while the file exists.
"""

import ctypes
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as capi

from worker.config.engine_settings import Configure
from worker.engine.backend import LoadedModel, Meanwhile, do_nothing
from worker.engine.step import Sampled, Slice, Step
from worker.llama.runner import LlamaRunner
from worker.models.loading.load import load_model
from worker.server.process.main import main
from worker.wire.jobs import SlotId, TokenId

GATES_DIR = "CRASHING_ENGINE_GATES"
DIES_LOADING = "CRASHING_ENGINE_DIES_LOADING"

FLOOD_BYTES = 4 * 1024 * 1024
LAST_LINE = "the last line of a flood"


class Gates:
    """Shut by the test, waited at by the engine. `load`: before loading; `decode`: STALL; `crash`: CRASHES."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def shut(self, *names: str) -> None:
        for name in names:
            (self._directory / name).touch()

    def open(self, *names: str) -> None:
        for name in names:
            (self._directory / name).unlink(missing_ok=True)

    def wait(self, name: str) -> None:
        while (self._directory / name).exists():
            time.sleep(0.005)


# ── what a prompt can ask for ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Raw:
    """The library's own handles, as our choke-point hides them. Any: opaque pointers."""

    context: Any
    vocab: Any
    n_batch: int

    def sample(self, index: int, *samplers: Any) -> None:
        chain = capi.llama_sampler_chain_init(capi.llama_sampler_chain_default_params())
        for sampler in samplers:
            capi.llama_sampler_chain_add(chain, sampler)
        capi.llama_sampler_sample(chain, self.context, index)


def _batch_over_n_batch(raw: Raw) -> None:
    batch = capi.llama_batch_init(raw.n_batch + 1, 0, 1)
    batch.n_tokens = raw.n_batch + 1
    start = capi.llama_memory_seq_pos_max(capi.llama_get_memory(raw.context), 0) + 1
    for i in range(batch.n_tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = 1, start + i, 1, 0
        batch.seq_id[i][0] = 0
    capi.llama_decode(raw.context, batch)


def _sample_without_output(raw: Raw) -> None:
    raw.sample(9999, capi.llama_sampler_init_greedy())


def _chain_that_selects_nothing(raw: Raw) -> None:
    raw.sample(-1, capi.llama_sampler_init_temp(1.0))


def _sequence_out_of_range(raw: Raw) -> None:
    capi.llama_memory_seq_rm(capi.llama_get_memory(raw.context), 9999, 0, -1)


def _piece_out_of_vocabulary(raw: Raw) -> None:
    buffer = ctypes.create_string_buffer(8)
    capi.llama_token_to_piece(raw.vocab, 10_000_000, buffer, 8, 0, False)


def _accept_of_forbidden_token(raw: Raw) -> None:
    grammar = capi.llama_sampler_init_grammar(raw.vocab, b'root ::= "yes"', b"root")
    capi.llama_sampler_accept(grammar, 18)


def _grammar_trigger_no_regex(raw: Raw) -> None:
    patterns = (ctypes.c_char_p * 1)(b"[")
    capi.llama_sampler_init_grammar_lazy_patterns(raw.vocab, b'root ::= "a"', b"root", patterns, 1, None, 0)


def _null_sampler(raw: Raw) -> None:
    raw.sample(-1, None, capi.llama_sampler_init_greedy())


def _null_context(_raw: Raw) -> None:
    capi.llama_n_ctx(None)


def _nested_grammar(raw: Raw) -> None:
    depth = 20_000
    capi.llama_sampler_init_grammar(raw.vocab, b"root ::= " + b"(" * depth + b'"a"' + b")" * depth, b"root")


def _garbage_to_the_front(_raw: Raw) -> None:
    os.write(int(sys.argv[1]), b"\xff" * 64)
    while True:
        time.sleep(1)


def _flood_of_words(_raw: Raw) -> None:
    _flood()


def _flood() -> None:
    line = b"the library has a lot to say \xf0\x9f\x8c\x8a\n"
    sys.stderr.buffer.write(line * (FLOOD_BYTES // len(line)) + LAST_LINE.encode())
    sys.stderr.flush()


def _tokens_nobody_knows_of(raw: Raw) -> None:
    """The third slot has the first one's tokens, too."""
    capi.llama_memory_seq_cp(capi.llama_get_memory(raw.context), 0, 2, 0, -1)


CRASHES: dict[str, Callable[[Raw], None]] = {
    "batch over n_batch": _batch_over_n_batch,
    "sample without output": _sample_without_output,
    "chain that selects nothing": _chain_that_selects_nothing,
    "sequence out of range": _sequence_out_of_range,
    "piece out of vocabulary": _piece_out_of_vocabulary,
    "accept of forbidden token": _accept_of_forbidden_token,
    "grammar trigger no regex": _grammar_trigger_no_regex,
    "null sampler": _null_sampler,
    "null context": _null_context,
    "nested grammar": _nested_grammar,
    "garbage to the front": _garbage_to_the_front,
}
PRANKS: dict[str, Callable[[Raw], None]] = {
    "flood of words": _flood_of_words,
    "tokens nobody knows of": _tokens_nobody_knows_of,
}

STALL, *_MARKERS = [
    *("<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>"),
    *("<issue_closed>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>"),
    *("<jupyter_script>", "<|endoftext|>"),
]
"""Special tokens of the default model that no text and no answer contains."""


def marker(kind: str) -> str:
    """The beginning of a prompt that asks for the misdeed."""
    return dict(zip(CRASHES | PRANKS, _MARKERS, strict=True))[kind]


# ── the engine ───────────────────────────────────────────────────────────────────────────────────


class CrashingRunner:
    """The real runner, watched for markers."""

    def __init__(self, runner: LlamaRunner, gates: Gates) -> None:
        self._runner = runner
        self.kv = runner.kv
        self.logprob = runner.logprob
        self._gates = gates
        self._stalling: set[SlotId] = set()
        self._stall = self._token(STALL)
        self._crashes = {self._token(marker(kind)): crash for kind, crash in CRASHES.items()}
        self._pranks = {self._token(marker(kind)): prank for kind, prank in PRANKS.items()}

    def _token(self, text: str) -> TokenId:
        (token,) = self._runner.model.tokenize(text)
        return token

    @property
    def n_threads(self) -> int:
        return self._runner.n_threads

    @property
    def can_abort(self) -> bool:
        return self._runner.can_abort

    @property
    def is_asynchronous(self) -> bool:
        return self._runner.is_asynchronous

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
        for token in slice_.tokens:
            if token == self._stall:
                self._stalling.add(slice_.slot)
            elif token in self._pranks:
                self._pranks[token](self._raw())
            elif token in self._crashes:
                self._gates.wait("crash")
                self._crashes[token](self._raw())
                raise AssertionError("llama.cpp has survived it")

    def _raw(self) -> Raw:
        model, context = self._runner.model, self._runner.context
        return Raw(context.handle, model.vocab, context.n_batch)

    def request_abort(self) -> None:
        self._runner.request_abort()

    def forget_abort(self) -> None:
        self._runner.forget_abort()


def load(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
    """The engine process's Load."""
    gates = Gates(Path(os.environ[GATES_DIR]))
    gates.wait("load")
    if DIES_LOADING in os.environ:
        _flood()
        os.abort()
    loaded = load_model(config, on_progress)
    assert isinstance(loaded.runner, LlamaRunner)
    return replace(loaded, runner=CrashingRunner(loaded.runner, gates))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(load)
