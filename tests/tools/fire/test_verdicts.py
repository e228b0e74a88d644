"""An outcome is right if it is the answer alone, or a part of it where the client or an engine's end cut it off."""

import msgspec
import pytest

from tests.tools.fire.test_answers import body, execute
from tools.fire.answers import Answer, answer_of
from tools.fire.asks import EXECUTE, Ask
from tools.fire.player import Outcome, Run
from tools.fire.trace import Act, Cancel, Cut, Fate, Pause
from tools.fire.verdicts import faults, unanswered

ASK = Ask(EXECUTE, {"prompt": "a"})
EVENTS = execute(["ab", "cd", "e"], "x")
ALONE = answer_of(ASK, 200, body(EXECUTE, EVENTS))
WRONG = execute(["ab", "cX", "e"], "x")


def error(code: str) -> dict[str, object]:
    return {"type": "error", "code": code, "message": "", "retriable": False}


def found(
    events: list[dict[str, object]],
    fate: Fate = None,
    *,
    broken: str = "",
    may_fail: bool = False,
    status: int = 200,
    alone: Answer = ALONE,
) -> list[str]:
    whole = body(EXECUTE, events) if status == 200 else msgspec.json.encode({"code": "x"})
    outcome = Outcome(0, Act(0, 0, fate), ASK, status, whole, broken, may_fail)
    return faults(Run([outcome]), {ASK.digest: alone})


@pytest.mark.parametrize("fate", [None, Pause(1, 5), Cancel(3), Cut(9)], ids=str)
def test_a_whole_answer_is_the_one_alone_whatever_the_client_did(fate: Fate) -> None:
    assert not found(EVENTS, fate)
    assert found(WRONG, fate)


def test_a_part_is_right_only_for_a_client_that_left() -> None:
    for events in (EVENTS[:1], EVENTS[:2], EVENTS[:3]):
        assert not found(events, Cut(1), broken="left")
        assert found(events, broken="the connection was lost")
        assert found(events)
    assert found(WRONG[:3], Cut(1), broken="left")


@pytest.mark.parametrize(
    ("code", "fate", "may_fail", "is_right"),
    [
        ("CANCELLED", Cancel(1), False, True),
        ("CANCELLED", None, False, False),
        ("CANCELLED", None, True, False),
        ("ENGINE_RESTARTED", None, True, True),
        ("ENGINE_RESTARTED", None, False, False),
        ("INVALID_REQUEST", Cancel(1), True, False),
    ],
)
def test_an_error_has_a_cause_and_what_came_before_is_a_prefix(
    code: str, fate: Fate, may_fail: bool, is_right: bool
) -> None:
    assert (not found([*EVENTS[:2], error(code)], fate, may_fail=may_fail)) == is_right
    assert found([*WRONG[:3], error(code)], fate, may_fail=may_fail)


def test_a_request_is_never_left_without_an_answer_or_refused() -> None:
    assert found([], status=503)
    assert found([], broken="nothing for 60 s")
    assert found([], status=500)
    assert not found([], status=500, may_fail=True)


def test_a_request_that_fails_alone_fails_in_traffic() -> None:
    """The length of the text that was sent by then depends on the moment."""
    failing = answer_of(ASK, 200, body(EXECUTE, [*EVENTS[:3], error("INFERENCE_FAILED")]))
    for n_events in range(1, 5):
        assert not found([*EVENTS[:n_events], error("INFERENCE_FAILED")], alone=failing)
    assert found([*WRONG[:3], error("INFERENCE_FAILED")], alone=failing)
    assert found([*EVENTS[:2], error("TIMEOUT")], alone=failing)
    assert found(EVENTS, alone=failing)


def lacking(events: list[dict[str, object]], fate: Fate = None, *, broken: str = "", status: int = 200) -> list[str]:
    whole = body(EXECUTE, events) if status == 200 else msgspec.json.encode({"code": "x"})
    return unanswered(Run([Outcome(0, Act(0, 0, fate), ASK, status, whole, broken)]))


def test_any_whole_answer_with_one_end_will_do_and_so_does_a_refusal() -> None:
    for events in (EVENTS, WRONG):
        assert not lacking(events)
    assert not lacking([], status=400)
    assert not lacking(EVENTS[:2], Cut(1), broken="left")
    assert not lacking([*EVENTS[:2], error("CANCELLED")], Cancel(1))


def test_what_breaks_off_fails_or_ends_twice_or_never_is_lost() -> None:
    assert lacking(EVENTS[:2], broken="the connection was lost")
    assert lacking([], status=500)
    assert lacking(EVENTS[:2])
    assert lacking([*EVENTS, EVENTS[-1]])
    for code in ("CANCELLED", "ENGINE_RESTARTED"):
        assert lacking([*EVENTS[:2], error(code)])
    assert unanswered(Run([], complaints=["it is not idle"])) == ["it is not idle"]
