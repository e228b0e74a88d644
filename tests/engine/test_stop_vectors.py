"""Jobs end as the protocol notes' vectors (B.8) say, on a whole engine whose model draws the vector's tokens."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import pytest

from tests.engine.fake_runner import Request, ToyModel
from tests.engine.rig import Rig
from tests.engine.toy_constraint import ToyConstraint
from worker.engine.step import Sampled
from worker.wire.jobs import Finished, JobKey, SlotId, StopReason, TokenId

PROMPT = (1,)
FIRST_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Script(ToyModel):
    """Draws these tokens one after the other, then dots; `tokens` are their ids, else they count up."""

    pieces: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()

    def draw(self, slot: SlotId, held: Seq[TokenId], seed: int, constraint: ToyConstraint | None = None) -> Sampled:
        assert constraint is None
        n_drawn = len(held) - len(PROMPT)
        text = self.pieces[n_drawn] if n_drawn < len(self.pieces) else "."
        token = self.tokens[n_drawn] if n_drawn < len(self.tokens) else FIRST_TOKEN + n_drawn
        return Sampled(slot, TokenId(token), text.encode(), is_end=token in self.ends)


def play(script: Script, max_tokens: int, stop: tuple[str, ...] = ()) -> tuple[list[str], Finished]:
    """The texts of all tokens, and the end."""
    rig = Rig(script)
    rig.submit(Request(PROMPT, max_tokens, stop))
    rig.run_until_idle()
    rig.check_stories()
    end = rig.stories[0].end
    assert isinstance(end, Finished)
    return rig.stories[0].texts, end


END = ("END",)


@pytest.mark.parametrize(
    ("script", "asked", "texts", "end"),
    [
        pytest.param(
            Script(pieces=("Hello", "world", "!")),
            (3, ()),
            ["Hello", "world", "!"],
            ("MAX_TOKENS", None),
            id="TV-231",
        ),
        pytest.param(
            Script(pieces=("Line 1", "\n", "\n"), tokens=(100, 13, 13)),
            (9, ("\n\n",)),
            ["Line 1", "", ""],
            ("STOP_SEQUENCE", "\n\n"),
            id="TV-232",
        ),
        pytest.param(
            Script(pieces=("E", "N", "X"), tokens=(5, 6, 8)),
            (4, END),
            ["", "", "ENX", "."],
            ("MAX_TOKENS", None),
            id="TV-233",
        ),
        pytest.param(
            Script(pieces=("E", "N", "D"), tokens=(20, 21, 22)),
            (9, ("\n\n", *END)),
            ["", "", ""],
            ("STOP_SEQUENCE", "END"),
            id="TV-236",
        ),
        pytest.param(
            Script(pieces=("a", "EN", "D")),
            (3, END),
            ["a", "", ""],
            ("STOP_SEQUENCE", "END"),
            id="TV-238-as-protocol-9-has-it",
        ),
        pytest.param(
            Script(pieces=("a", "b", ""), tokens=(5, 6, 2), ends=frozenset({2})),
            (3, END),
            ["a", "b", ""],
            ("EOS", None),
            id="end-token-as-the-last",
        ),
    ],
)
def test_a_job_ends_as_its_vector_says(
    script: Script,
    asked: tuple[int, tuple[str, ...]],
    texts: list[str],
    end: tuple[StopReason, str | None],
) -> None:
    """`asked`: max_tokens and stop; `end`: the reason and the stop that matched."""
    assert play(script, *asked) == (texts, Finished(JobKey(0), *end))


def test_text_held_back_for_a_stop_comes_with_the_last_token() -> None:
    """TV-233, had the job ended at its third token."""
    texts, end = play(Script(pieces=("a", "E", "N")), 3, ("END",))
    assert (texts, end.reason) == (["a", "", "EN"], "MAX_TOKENS")
