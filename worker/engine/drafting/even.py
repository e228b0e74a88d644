"""Drafts of equal length, for memories with recurrent state."""

from collections.abc import Sequence as Seq
from itertools import accumulate, islice
from math import log

from worker.engine.drafting.pricing import MIN_GAIN, Proposal, Speculation
from worker.engine.step import Slice
from worker.limits import MAX_DRAFTS


class EvenSpeculation(Speculation):
    """Speculation's promises with at most `n_each` draft tokens for a sequence, and as many for all that have any.

    It is for memories with recurrent state (llama/state_kv.py). llama.cpp computes slices of one length together there,
    and those of another length after them. So a step in which some sequences have drafts reads the weights twice, which
    costs more than its rows.
    """

    def __init__(self, row_costs: Seq[tuple[int, float]], n_each: int, switch_s: float = 0.0) -> None:
        super().__init__(row_costs, MAX_DRAFTS, switch_s)
        self._n_each = n_each
        self._is_mixed = False
        """True if some slices of the planned step have drafts, and some none."""

    def took(self, n_tokens: int, seconds: float, *, has_drafts: bool) -> None:
        """Learn as Speculation does, but from steps of one length alone."""
        if has_drafts and self._is_mixed:
            self._had_drafts = True
        else:
            super().took(n_tokens, seconds, has_drafts=has_drafts)

    def most_drafts(self, n_rows: int) -> int:
        return min(self._n_each, super().most_drafts(n_rows))

    def _planned(self, proposals: Seq[Proposal], made_s: float) -> list[int]:
        n_rows, counts = len(proposals), [0] * len(proposals)
        _, takers, n_each = self._best_takers(proposals, made_s)
        self._is_mixed = 0 < len(takers) < n_rows
        for i in takers:
            counts[i] = n_each
            proposals[i].account.lost_s += self._surplus_s(n_rows, len(takers), n_each) / len(takers)
        return counts

    def in_order(self, slices: Seq[Slice]) -> tuple[Slice, ...]:
        """Return those with drafts last, because only the last ones can lose tokens again."""
        return tuple(sorted(slices, key=lambda slice_: (slice_.n_drafts, len(slice_.tokens))))

    def _best_takers(self, proposals: Seq[Proposal], made_s: float) -> tuple[float, list[int], int]:
        """Return the gain of the fastest step, the indexes of its sequences with drafts, and the number of tokens of
        each draft; no sequences if that is not fast enough."""
        n_rows, plain_s = len(proposals), self.costs.of(len(proposals)) + made_s
        gained = [list(accumulate(islice(proposal.gains(), self._n_each))) for proposal in proposals]
        best = (n_rows * log(MIN_GAIN), list[int](), 0)
        for n_each in range(1, self._n_each + 1):
            able = [i for i in range(n_rows) if len(gained[i]) >= n_each]
            able.sort(key=lambda i: -gained[i][n_each - 1])
            n_room = min(self._n_most // n_each, self.costs.widest // (1 + n_each))
            for n_takers in range(1, min(len(able), n_room) + 1):
                takers = able[:n_takers]
                surplus_s = self._surplus_s(n_rows, n_takers, n_each)
                most_lost_s = max(proposals[i].account.lost_s for i in takers) + surplus_s / n_takers
                least = gained[takers[-1]][n_each - 1] if n_takers == n_rows else 0.0
                slower = 1 + surplus_s / self.costs.of(n_rows)
                if most_lost_s > self._most_lost_s or self._is_held_up(least, slower, n_rows):
                    continue
                net = sum(gained[i][n_each - 1] for i in takers) - n_rows * log(1 + surplus_s / plain_s)
                best = max(best, (net, takers, n_each))
        return best

    def _surplus_s(self, n_rows: int, n_takers: int, n_each: int) -> float:
        """Return the seconds that a step takes longer if n_takers of its sequences have n_each draft tokens."""
        n_others = n_rows - n_takers
        others_s = self.costs.of(n_others) if n_others else 0.0
        return others_s + self.with_drafts_s(n_takers * (1 + n_each)) - self.costs.of(n_rows)
