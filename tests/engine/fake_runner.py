"""A backend in llama.cpp's place that can be checked by eye, and what it makes of a request that runs alone.

It keeps the cells each slot was given, shared ones once. The next token is a function of all of them, so one that is
lost, doubled or leaked from a neighbour changes everything after it; and it asserts what llama.cpp would not forgive.
"""

from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Self
from zlib import crc32

from tests.engine.toy_constraint import N_VOCAB, ToyConstraint, letters_of
from worker.engine.backend import Checkpoint, Meanwhile, Saved, do_nothing
from worker.engine.config import EngineConfig
from worker.engine.scheduler import MAX_FORCED
from worker.engine.step import Aborted, BadBatch, NoRoom, Sampled, Score, Slice, Step
from worker.limits import MAX_DRAFTS
from worker.wire.jobs import FailureCode, Logprob, SlotId, StepKind, StopReason, TokenId, TopToken

CELL_BYTES = 10


@dataclass(frozen=True, slots=True)
class Request:
    prompt: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...] = ()
    seed: int = 0
    constraint: int | None = None
    """A ToyConstraint's number."""
    has_logprobs: bool = False
    prompt_logprobs: int | None = None
    prediction: tuple[int, ...] = ()
    salt: bytes = b""


@dataclass(frozen=True, slots=True)
class ToyModel:
    """Draws by checksum. Some tokens are special: `ends` end the job (their bytes are not text), `undrawable` are drawn
    from logits that are not numbers, behind `unscorable` there are such logits, and `poison` cannot be decoded.
    """

    ends: frozenset[int] = frozenset()
    undrawable: frozenset[int] = frozenset()
    unscorable: frozenset[int] = frozenset()
    poison: frozenset[int] = frozenset()
    n_seen: int = 0
    """A draw depends on this many tokens before it. Few make a text that repeats itself; 0 means all of them."""

    def draw(self, slot: SlotId, held: Seq[TokenId], seed: int, constraint: ToyConstraint | None = None) -> Sampled:
        token = TokenId(crc32(repr((seed, list(held[-self.n_seen :]))).encode()) % N_VOCAB)
        if token in self.undrawable:
            return Sampled(slot, TokenId(0), b"", is_end=False, error="the logits are not numbers")
        while constraint is not None and token not in self.ends and not constraint.n_allowed([token]):
            token = TokenId((token + 1) % N_VOCAB)
        return Sampled(slot, token, letters_of(token), is_end=token in self.ends)

    def answer_of(self, prompt: Seq[int], n_tokens: int, seed: int = 0) -> list[TokenId]:
        held = [TokenId(token) for token in prompt]
        for _ in range(n_tokens):
            held.append(self.draw(SlotId(0), held, seed).token)
        return held[len(prompt) :]

    def score(self, held: Seq[TokenId], token: TokenId) -> Score:
        """The worth of a prompt's token after these."""
        return Score(f"{crc32(repr(list(held)).encode())} {token}".encode())

    def logprob(self, score: Score, n_top: int) -> Logprob:
        checksum, token = map(int, score.split())
        tops = (TopToken("", TokenId(place), -(checksum + place) / 2**32) for place in range(n_top))
        return Logprob(TopToken("", TokenId(token), -checksum / 2**32), tuple(tops))

    def prompt_logprobs(self, prompt: Seq[int], n_top: int) -> list[Logprob]:
        """The log-probabilities of a prompt's tokens but the first, as a run alone gives them."""
        tokens = [TokenId(token) for token in prompt]
        return [self.logprob(self.score(tokens[:i], tokens[i]), n_top) for i in range(1, len(tokens))]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`text` is all that was drawn, cut at the stop. It does not say how much of it is shown before a failure."""

    text: str
    n_drawn: int
    end: StopReason | FailureCode
    stop: str | None = None
    is_context_full: bool = False


def alone(model: ToyModel, request: Request, context_length: int) -> Outcome:
    """The outcome of the request whatever jobs run next to it, computed without slots, steps and states."""
    held = [TokenId(token) for token in request.prompt]
    text, n_drawn = "", 0
    is_scored = request.prompt_logprobs is not None
    if is_scored and (model.poison.intersection(held) or model.unscorable.intersection(held[:-1])):
        return Outcome("", 0, "INFERENCE_FAILED")
    if request.max_tokens == 0:
        return Outcome("", 0, "INFERENCE_FAILED" if model.poison.intersection(held) else "MAX_TOKENS")
    constraint = None if request.constraint is None else ToyConstraint(request.constraint)
    forced = [] if constraint is None else constraint.take_forced(request.max_tokens)
    # A forced token is reported with the draw before it, or the first, unless each has a step for its log-probability.
    has_own_steps = is_reported = request.has_logprobs or is_scored
    while True:
        if forced and has_own_steps and model.poison.intersection(held):
            return Outcome(text, n_drawn, "INFERENCE_FAILED")
        if forced:
            known = forced.pop(0)
            drawn = Sampled(SlotId(0), known.id, known.piece, is_end=False)
        else:
            drawn = model.draw(SlotId(0), held, request.seed, constraint)
            if model.poison.intersection(held) or drawn.error is not None:
                return Outcome(text, n_drawn if is_reported else 0, "INFERENCE_FAILED")
            is_reported = True
            if constraint is not None and not drawn.is_end:
                constraint.accept(drawn.token)
                forced = constraint.take_forced(request.max_tokens)
        held.append(drawn.token)
        n_drawn += 1
        if drawn.is_end:
            return Outcome(text, n_drawn, "EOS")
        text += drawn.piece.decode()
        if (found := first_stop(text, request.stop)) is not None:
            return Outcome(found[0], n_drawn, "STOP_SEQUENCE", found[1])
        if constraint is not None and constraint.is_over and not forced:
            return Outcome(text, n_drawn, "EOS")
        if n_drawn == request.max_tokens:
            return Outcome(text, n_drawn, "MAX_TOKENS")
        if len(held) == context_length:
            return Outcome(text, n_drawn, "MAX_TOKENS", is_context_full=True)


def first_stop(text: str, stops: Seq[str]) -> tuple[str, str] | None:
    """(text before the stop, the stop): the one completed first, of several the first in the request."""
    ends = [(text.find(stop) + len(stop), place) for place, stop in enumerate(stops) if stop in text]
    if not ends:
        return None
    end, place = min(ends)
    return text[: end - len(stops[place])], stops[place]


def _look_away(_step: Step) -> None:
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A cell of the memory; slots that share it hold the same object."""

    token: TokenId
    position: int


@dataclass(frozen=True, slots=True)
class Copy:
    """backend.py's Saved: what was read out of some cells."""

    cells: tuple[tuple[TokenId, int], ...]

    @property
    def n_tokens(self) -> int:
        return len(self.cells)

    @property
    def n_bytes(self) -> int:
        return CELL_BYTES * len(self.cells)

    def split(self, n_tokens: int) -> tuple["Copy", "Copy"]:
        assert 0 < n_tokens < len(self.cells)
        return Copy(self.cells[:n_tokens]), Copy(self.cells[n_tokens:])


STATE_BYTES = 70


@dataclass(frozen=True, slots=True)
class CopiedState:
    """backend.py's Checkpoint: what a state has seen."""

    seen: tuple[TokenId, ...]

    @property
    def n_tokens(self) -> int:
        return len(self.seen)

    @property
    def n_bytes(self) -> int:
        return STATE_BYTES


class FakeKv:
    """backend.py's Kv. With a state a slot also knows the tokens that it has seen, which cannot be cut."""

    def __init__(self, *, n_slots: int, n_cells: int, can_share: bool, has_state: bool = False) -> None:
        self.n_cells = n_cells
        self.max_undone = MAX_DRAFTS
        self.newest: dict[SlotId, int] = {}
        """The slices of the last step that are of the last one's length, and that length."""
        self.has_state = has_state
        self.states: list[tuple[TokenId, ...]] = [()] * n_slots
        self.n_states_saved = 0
        self.cells: list[list[Cell]] = [[] for _ in range(n_slots)]
        self.n_saved = 0
        """Tokens whose cells were copied out."""
        self.has_host_memory = True
        self._can_share = can_share

    @property
    def held(self) -> list[list[TokenId]]:
        return [[cell.token for cell in cells] for cells in self.cells]

    @property
    def n_cells_used(self) -> int:
        return len({id(cell) for cells in self.cells for cell in cells})

    @property
    def n_free_cells(self) -> int:
        return self.n_cells - self.n_cells_used

    @property
    def can_share(self) -> bool:
        return self._can_share

    def trim(self, slot: SlotId, n_keep: int) -> None:
        assert 0 <= n_keep <= len(self.cells[slot])
        n_undone = len(self.cells[slot]) - n_keep
        if self.has_state and n_keep and n_undone:
            assert n_undone <= self.max_undone, "no more than there are snapshots"
            assert n_undone < self.newest.pop(slot), "none of what was there before the last step"
        del self.cells[slot][n_keep:]
        self.states[slot] = self.states[slot][:n_keep]

    def checkpoint(self, slot: SlotId, tokens: Seq[TokenId] = ()) -> CopiedState:
        assert self._can_share
        assert self.has_state
        assert self.cells[slot], "an empty slot has no state"
        assert not tokens or tuple(tokens) == self.states[slot], "what it has seen"
        self._need_host_memory()
        self.n_states_saved += 1
        return CopiedState(self.states[slot])

    def _begin_state(self, slot: SlotId, n_tokens: int, checkpoint: Checkpoint | None) -> None:
        assert (checkpoint is not None) == self.has_state, "a slot begins with a state, if there are any"
        if checkpoint is not None:
            assert isinstance(checkpoint, CopiedState)
            assert checkpoint.n_tokens == n_tokens, "it is the one after the cells"
            self.states[slot] = checkpoint.seen

    def share(self, source: SlotId, target: SlotId, n_tokens: int, checkpoint: Checkpoint | None = None) -> None:
        assert self._can_share
        assert not self.cells[target], "only an empty slot is given another's cells"
        assert 0 < n_tokens <= len(self.cells[source])
        self.cells[target] = self.cells[source][:n_tokens]
        if self.has_state and checkpoint is None and n_tokens == len(self.cells[source]):
            checkpoint = CopiedState(self.states[source])
        self._begin_state(target, n_tokens, checkpoint)

    def n_cells_of(self, slots: Collection[SlotId]) -> int:
        others = {id(cell) for slot, cells in enumerate(self.cells) if slot not in slots for cell in cells}
        return len({id(cell) for slot in slots for cell in self.cells[slot]} - others)

    def save(self, slot: SlotId, start: int, tokens: Seq[TokenId] = (), *, end: int | None = None) -> Copy:
        assert self._can_share
        cells = self.cells[slot][:end]
        assert end is None or end == len(cells), "no more than there are"
        assert 0 <= start < len(cells), "there is something to save"
        assert not tokens or list(tokens) == [cell.token for cell in cells], "whose cells they are"
        self._need_host_memory()
        self.n_saved += len(cells) - start
        return Copy(tuple((cell.token, cell.position) for cell in cells[start:]))

    def load(self, slot: SlotId, parts: Seq[Saved], n_tokens: int, checkpoint: Checkpoint | None = None) -> None:
        assert self._can_share
        assert not self.cells[slot], "only an empty slot is filled"
        assert 0 < n_tokens <= self.n_free_cells
        self._need_host_memory()
        loaded: list[tuple[TokenId, int]] = []
        for part in parts:
            assert isinstance(part, Copy)
            loaded += part.cells
        assert len(loaded) >= n_tokens
        assert [position for _, position in loaded] == list(range(len(loaded))), "the parts follow each other"
        self.cells[slot] = [Cell(token, position) for token, position in loaded[:n_tokens]]
        self._begin_state(slot, n_tokens, checkpoint)

    def _need_host_memory(self) -> None:
        if not self.has_host_memory:
            raise MemoryError

    def count_tokens(self) -> list[int]:
        return [len(cells) for cells in self.cells]

    def hold(self, slot: SlotId, tokens: Seq[TokenId]) -> None:
        if len(tokens) not in self.newest.values():
            self.newest.clear()
        self.newest[slot] = len(tokens)
        cells = self.cells[slot]
        cells += [Cell(token, len(cells) + i) for i, token in enumerate(tokens)]
        if self.has_state:
            self.states[slot] += tuple(tokens)
            assert self.states[slot] == tuple(cell.token for cell in cells), "the state has seen what the cells hold"


class FakeRunner:
    """backend.py's Runner. `before_run` sees every step at the moment it runs, as another thread might.

    Asked to abort, it first keeps `n_kept_at_abort` tokens of the step; without `has_room` one step finds no cells.
    """

    def __init__(
        self,
        model: ToyModel,
        *,
        n_slots: int,
        n_cells: int,
        chunk: int,
        widest_step: int = 0,
        can_share: bool = True,
        has_state: bool = False,
        can_abort: bool = True,
        is_asynchronous: bool = False,
    ) -> None:
        self.model = model
        self.is_asynchronous = is_asynchronous
        self.is_computing = False
        """True while a step computes and its caller does something else."""
        self.kv = FakeKv(n_slots=n_slots, n_cells=n_cells, can_share=can_share, has_state=has_state)
        self.chunk = chunk
        self.widest_step = max(chunk, widest_step)
        self.ran: list[tuple[StepKind, tuple[SlotId, ...]]] = []
        """Every call of `run`, also those that failed."""
        self.n_computed = 0
        """Tokens that steps have computed, all together."""
        self.before_run: Callable[[Step], None] = _look_away
        self.n_threads = 1
        self.can_abort = can_abort and not has_state
        self.has_room = True
        self.n_kept_at_abort = 0
        self._is_abort_requested = False

    @classmethod
    def of(cls, model: ToyModel, config: EngineConfig, **abilities: bool) -> Self:
        """The runner whose sizes are the engine's."""
        return cls(
            model,
            n_slots=config.n_slots + len(config.retained_slots),
            n_cells=config.n_cells,
            chunk=config.chunk,
            widest_step=config.widest_step,
            **abilities,
        )

    def run(self, step: Step, meanwhile: Meanwhile = do_nothing) -> list[Sampled]:
        self._check(step)
        self.ran.append((step.kind, tuple(slice_.slot for slice_ in step.slices)))
        self.before_run(step)
        self._fail_as_set(step)
        if self.is_asynchronous:
            self.is_computing = True
            meanwhile()
            self.is_computing = False
        self.kv.newest.clear()
        for slice_ in step.slices:
            self.kv.hold(slice_.slot, slice_.tokens)
        self.n_computed += step.n_tokens
        return [each for slice_ in step.slices for each in (*self._scores(slice_), *self._draws(slice_))]

    def logprob(self, score: Score, n_top: int) -> Logprob:
        return self.model.logprob(score, n_top)

    def request_abort(self) -> None:
        self._is_abort_requested = self.can_abort

    def forget_abort(self) -> None:
        self._is_abort_requested = False

    def _draws(self, slice_: Slice) -> Iterator[Sampled]:
        """One draw after the token before the draft, and one after each draft token that was drawn."""
        if slice_.sampling is None or self._is_unscorable(slice_):
            return
        held = [cell.token for cell in self.kv.cells[slice_.slot]]
        held = held[: len(held) - slice_.n_drafts]
        draft = slice_.tokens[len(slice_.tokens) - slice_.n_drafts :]
        assert list(slice_.generated) == held[len(held) - len(slice_.generated) :], "the penalty would see other tokens"
        if slice_.forced is not None:
            yield Sampled(slice_.slot, slice_.forced.id, slice_.forced.piece, is_end=False)
            return
        constraint: Any = slice_.constraint  # a ToyConstraint, or the worker's own (test_answers.py)
        n_ahead = 0
        for expected in (*draft, None):
            drawn = self.model.draw(slice_.slot, held, slice_.sampling.drawn_seed, constraint)
            yield drawn
            if drawn.error is not None or drawn.is_end or drawn.token != expected:
                break
            held.append(drawn.token)
            if constraint is not None:
                constraint.accept(drawn.token)
                n_ahead += 1
                if constraint.is_over or constraint.forced():
                    break
        if constraint is not None:
            constraint.take_back(n_ahead)

    def _scores(self, slice_: Slice) -> Iterator[Sampled]:
        """Score what follows the slice's tokens, or say why not."""
        if slice_.scoring is None:
            return
        if self._is_unscorable(slice_):
            yield Sampled(slice_.slot, TokenId(0), b"", is_end=False, error="the logits are not numbers")
            return
        held = [cell.token for cell in self.kv.cells[slice_.slot]]
        slice_.scoring.scores[slice_.start + 1 :] = [
            self.model.score(held[:position], token)
            for position, token in zip(range(slice_.start + 1, len(held) + 1), slice_.scoring.targets, strict=False)
        ]

    def _is_unscorable(self, slice_: Slice) -> bool:
        n_targets = 0 if slice_.scoring is None else len(slice_.scoring.targets)
        return bool(self.model.unscorable.intersection(slice_.tokens[:n_targets]))

    def _fail_as_set(self, step: Step) -> None:
        if not self.has_room:
            self.has_room = True
            raise NoRoom
        if any(self.model.poison.intersection(slice_.tokens) for slice_ in step.slices):
            raise BadBatch("a token is poison")
        if self._is_abort_requested:
            self._keep_part(step, self.n_kept_at_abort)
            raise Aborted

    def _keep_part(self, step: Step, n_tokens: int) -> None:
        for slice_ in step.slices:
            kept = slice_.tokens[:n_tokens]
            self.kv.hold(slice_.slot, kept)
            if kept:
                list(self._scores(slice_))
            n_tokens -= len(kept)

    def _check(self, step: Step) -> None:
        slots = [slice_.slot for slice_ in step.slices]
        assert slots, "a step decodes something"
        assert len(set(slots)) == len(slots), "one slice per slot"
        assert set(slots) <= set(range(len(self.kv.cells))), "the slot exists"
        assert self.kv.n_cells_used + step.n_tokens <= self.kv.n_cells, "the cells exist"
        assert step.kind == "decode" or step.n_tokens <= self.widest_step, "a prefill step has a size"
        n_rows = sum(slice_.n_rows for slice_ in step.slices)
        assert n_rows <= max(len(self.kv.cells) + MAX_DRAFTS, self.chunk), "there are enough rows of logits"
        for slice_ in step.slices:
            self._check_slice(step.kind, slice_)

    def _check_slice(self, kind: StepKind, slice_: Slice) -> None:
        assert slice_.start == len(self.kv.cells[slice_.slot]), "positions are contiguous"
        assert slice_.tokens, "a slice has tokens"
        if kind == "decode":
            assert 1 <= len(slice_.tokens) - slice_.n_drafts <= 1 + MAX_FORCED
            assert slice_.sampling is not None or not slice_.n_drafts
            assert slice_.scoring is None
        else:
            assert slice_.n_drafts == 0
        if slice_.scoring is not None:
            assert len(slice_.tokens) - len(slice_.scoring.targets) in (0, 1)
            assert slice_.scoring.targets[: len(slice_.tokens) - 1] == slice_.tokens[1:], "its own tokens are scored"
            assert len(slice_.scoring.scores) > slice_.start, "what comes before is scored"
