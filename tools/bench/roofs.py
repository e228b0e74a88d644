"""The least time that a model takes on a machine: its weights read once for a step, its multiply-adds at their peak.

Owns the arithmetic, from the tensors of a file and the rates of peaks.py. Attention, KV cells, sampling, HTTP and all
that is not a matrix of weights are left out, so that nothing reaches a roof; but a step that takes drafts along yields
more tokens than the one for each stream that is counted here. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from os.path import commonprefix

from tools.bench.answers import Answer, Ask
from tools.bench.peaks import Peaks
from worker.model.gguf import Tensor
from worker.model.info import ModelInfo

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_EXPERTS = "_exps."
"""The part of the name of a tensor that holds the matrices of all experts in sequence."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests that could all be computed together."""

    n_new: tuple[float, ...]
    """Tokens of each prompt that no earlier prompt of the scenario begins with."""
    n_tokens: tuple[int, ...]
    """Tokens of each answer."""


Work = tuple[Phase, ...]
"""The work of a scenario's requests, phase by phase."""


def work_of(asks: Sequence[Ask], answers: Sequence[Answer]) -> Work:
    """The share of a prompt that is new is estimated from its characters."""
    shares: list[float] = []
    for number, ask in enumerate(asks):
        known = (commonprefix([ask.prompt, before.prompt]) for before in asks[:number])  # noqa: RUF071 - of characters
        shares.append(1 - max(map(len, known), default=0) / len(ask.prompt))
    whole = list(zip(asks, shares, answers, strict=True))
    return tuple(
        Phase(
            tuple(share * answer.n_prompt for ask, share, answer in whole if ask.phase == phase),
            tuple(answer.n_tokens for ask, _, answer in whole if ask.phase == phase),
        )
        for phase in sorted({ask.phase for ask in asks})
    )


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights in a model's file that a step reads."""

    n_bytes: int
    """All matrices once, of the experts as many as compute a token; the embedding only where it is the output, too."""
    n_inner: int
    """Multiply-adds for each token: one for each weight of the layers."""
    n_output: int
    """Multiply-adds for each token whose logits are wanted: all in a decode step, the last one of a prompt."""

    @classmethod
    def of(cls, info: ModelInfo) -> "Weights":
        inner = [tensor for tensor in _matrices(info) if tensor.name not in (_EMBEDDING, _OUTPUT)]
        by_name = {tensor.name: tensor for tensor in info.loaded_tensors}
        output = by_name.get(_OUTPUT, by_name[_EMBEDDING])
        return cls(
            n_bytes=output.n_bytes + round(sum(_share(tensor, info) * tensor.n_bytes for tensor in inner)),
            n_inner=round(sum(_share(tensor, info) * prod(tensor.dims) for tensor in inner)),
            n_output=prod(output.dims),
        )


@dataclass(frozen=True, slots=True)
class Roof:
    """A model on a machine, neither of which can do more."""

    weights: Weights
    peaks: Peaks

    def step_s(self, n_streams: int) -> float:
        """A decode step with one token of each stream."""
        n_multiply_adds = n_streams * (self.weights.n_inner + self.weights.n_output)
        return max(self._read_s, n_multiply_adds / self.peaks.multiply_adds_per_s)

    def prompt_s(self, n_tokens: float) -> float:
        """A prompt, to its first token."""
        n_multiply_adds = n_tokens * self.weights.n_inner + self.weights.n_output
        return max(self._read_s, n_multiply_adds / self.peaks.multiply_adds_per_s)

    def phase_s(self, phase: Phase) -> float:
        """All its prompts at once, then a step for each further token, with fewer streams as they end."""
        steps = (sum(n_tokens > number for n_tokens in phase.n_tokens) for number in range(1, max(phase.n_tokens)))
        return self.prompt_s(sum(phase.n_new)) + sum(map(self.step_s, steps))

    @property
    def _read_s(self) -> float:
        return self.weights.n_bytes / self.peaks.read_bytes_per_s


def _matrices(info: ModelInfo) -> Iterable[Tensor]:
    return (tensor for tensor in info.loaded_tensors if len(tensor.dims) > 1)


def _share(tensor: Tensor, info: ModelInfo) -> float:
    """The share of it that one token needs."""
    return info.experts_used / tensor.dims[-1] if _EXPERTS in tensor.name and info.experts_used else 1.0
