"""A backend in llama.cpp's place that can be checked by eye, and what it makes of a request that runs alone.

It keeps the tokens each slot was given. The next token is a function of all of them, so one that is lost, doubled or
leaked from a neighbour changes everything after it; and it asserts what llama.cpp would not forgive.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from zlib import crc32

from worker.engine.backend import Aborted, BadBatch, NoRoom, Sampled, Slice, Step
from worker.engine.contract import FailureCode, Sampling, SlotId, StepKind, StopReason, TokenId

N_VOCAB = 64
LETTERS = b"abcd"


@dataclass(frozen=True, slots=True)
class Request:
    prompt: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ToyModel:
    """Draws by checksum. Some tokens are special: `ends` end the job (their bytes are not text), `undrawable` are drawn
    from logits that are not numbers, and `poison` cannot be decoded.
    """

    ends: frozenset[int] = frozenset()
    undrawable: frozenset[int] = frozenset()
    poison: frozenset[int] = frozenset()

    def draw(self, slot: SlotId, held: Seq[TokenId], seed: int) -> Sampled:
        token = TokenId(crc32(repr((seed, list(held))).encode()) % N_VOCAB)
        if token in self.undrawable:
            return Sampled(slot, TokenId(0), b"", is_end=False, error="the logits are not numbers")
        return Sampled(slot, token, piece(token), is_end=token in self.ends)


def piece(token: int) -> bytes:
    """One or two letters; every ninth token is a control token, which has none."""
    return b"" if token % 9 == 0 else LETTERS[token % 4 : token % 4 + 1] * (1 + token % 2)


# ── a request alone ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Outcome:
    """`text` is all that was drawn, cut at the stop; what of it may be shown before a failure is not said."""

    text: str
    n_drawn: int
    end: StopReason | FailureCode
    stop: str | None = None
    is_context_full: bool = False


def alone(model: ToyModel, request: Request, context_length: int) -> Outcome:
    """What the request must give beside any neighbours, told without slots, steps and states."""
    held = [TokenId(token) for token in request.prompt]
    text, n_drawn = "", 0
    while True:
        drawn = model.draw(SlotId(0), held, request.seed)
        if model.poison.intersection(held) or drawn.error is not None:
            return Outcome(text, n_drawn, "INFERENCE_FAILED")
        held.append(drawn.token)
        n_drawn += 1
        if drawn.is_end:
            return Outcome(text, n_drawn, "EOS")
        text += drawn.piece.decode()
        if (found := first_stop(text, request.stop)) is not None:
            return Outcome(text[: found[0]], n_drawn, "STOP_SEQUENCE", found[1])
        if n_drawn == request.max_tokens:
            return Outcome(text, n_drawn, "MAX_TOKENS")
        if len(held) == context_length:
            return Outcome(text, n_drawn, "MAX_TOKENS", is_context_full=True)


def first_stop(text: str, stops: Seq[str]) -> tuple[int, str] | None:
    """Where the stop that is completed first begins, and which it is."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return end - len(stop), stop
    return None


# ── the backend ──────────────────────────────────────────────────────────────────────────────────


def _look_away(_step: Step) -> None:
    pass


class FakeRunner:
    """The contract's Runner. `before_run` sees every step at the moment it runs, as another thread might.

    Asked to abort, it first keeps `n_kept_at_abort` tokens of the step; without `has_room` one step finds no cells.
    """

    def __init__(self, model: ToyModel, *, n_slots: int, n_cells: int, chunk: int) -> None:
        self.model = model
        self.n_cells = n_cells
        self.chunk = chunk
        self.held: list[list[TokenId]] = [[] for _ in range(n_slots)]
        self.ran: list[tuple[StepKind, tuple[SlotId, ...]]] = []
        """Every call of `run`, also those that failed."""
        self.before_run: Callable[[Step], None] = _look_away
        self.has_room = True
        self.n_kept_at_abort = 0
        self._is_abort_requested = False
        self._decoding: set[SlotId] = set()

    @property
    def n_cells_used(self) -> int:
        return sum(len(tokens) for tokens in self.held)

    def run(self, step: Step) -> list[Sampled]:
        self._check(step)
        self.ran.append((step.kind, tuple(piece.slot for piece in step.slices)))
        self.before_run(step)
        self._fail_as_told(step)
        for piece in step.slices:
            self.held[piece.slot] += piece.tokens
        return [self._draw(piece, piece.sampling) for piece in step.slices if piece.sampling is not None]

    def trim(self, slot: SlotId, n_keep: int) -> None:
        assert 0 <= n_keep <= len(self.held[slot])
        del self.held[slot][n_keep:]
        if n_keep == 0:
            self._decoding.discard(slot)

    def request_abort(self) -> None:
        self._is_abort_requested = True

    def forget_abort(self) -> None:
        self._is_abort_requested = False

    def _draw(self, piece: Slice, sampling: Sampling) -> Sampled:
        held = self.held[piece.slot]
        assert list(piece.generated) == held[len(held) - len(piece.generated) :], "the penalty would see other tokens"
        self._decoding.add(piece.slot)
        return self.model.draw(piece.slot, held, sampling.seed)

    def _fail_as_told(self, step: Step) -> None:
        if not self.has_room:
            self.has_room = True
            raise NoRoom
        if any(self.model.poison.intersection(piece.tokens) for piece in step.slices):
            raise BadBatch("a token is poison")
        if self._is_abort_requested:
            self._keep_part(step, self.n_kept_at_abort)
            raise Aborted

    def _keep_part(self, step: Step, n_tokens: int) -> None:
        for piece in step.slices:
            kept = piece.tokens[:n_tokens]
            self.held[piece.slot] += kept
            n_tokens -= len(kept)

    def _check(self, step: Step) -> None:
        slots = [piece.slot for piece in step.slices]
        assert slots, "a step decodes something"
        assert len(set(slots)) == len(slots), "one slice per slot"
        assert set(slots) <= set(range(len(self.held))), "the slot exists"
        assert self.n_cells_used + step.n_tokens <= self.n_cells, "the cells exist"
        assert step.kind == "decode" or step.n_tokens <= self.chunk, "a prefill step is at most one chunk"
        for piece in step.slices:
            self._check_slice(step.kind, piece)

    def _check_slice(self, kind: StepKind, piece: Slice) -> None:
        end = piece.start + len(piece.tokens)
        assert piece.start == len(self.held[piece.slot]), "positions are contiguous"
        assert end > piece.start, "a slice has tokens"
        assert (kind == "decode") == (piece.slot in self._decoding), "prefill and decode are never mixed"
        if kind == "decode":
            assert len(piece.tokens) == 1
            assert piece.sampling is not None
        else:
            assert piece.start // self.chunk == (end - 1) // self.chunk, "no slice crosses a chunk's edge"
            assert end % self.chunk == 0 or piece.sampling is not None, "only the prompt's end stops short of an edge"
