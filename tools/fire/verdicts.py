"""The law: each answer in traffic is the one alone, unless the client, or the end of an engine, cut it off.

Pure.
"""

from collections.abc import Mapping

import msgspec

from tools.fire.answers import OK, Answer, answer_of, differences, excesses
from tools.fire.player import Outcome, Run
from tools.fire.trace import Cancel, Cut

_CANCELLED = {"CANCELLED", "cancelled", "server_error", "api_error", "invalid_request_error"}
"""The codes of the protocols' ends after a cancel."""
_CRASHED = {
    *("ENGINE_RESTARTED", "INFERENCE_FAILED", "engine_restarted", "inference_failed"),
    *("server_error", "api_error", "overloaded_error"),
}
"""Those after an engine's end."""
_FAILED = 500


def faults(run: Run, alone: Mapping[str, Answer]) -> list[str]:
    """One line for each thing that is not as it should be."""
    found = list(run.complaints)
    for outcome in run.outcomes:
        fault = _fault(outcome, alone[outcome.ask.digest])
        if fault:
            where = f"life {outcome.life}, ask {outcome.act.ask} at {outcome.act.at_ms} ms ({outcome.ask.path})"
            found.append(f"{where}: {fault}")
    return found


def unanswered(run: Run) -> list[str]:
    """One line for each request without a whole answer that ends once, at a worker whose engine is not killed."""
    found = list(run.complaints)
    for outcome in run.outcomes:
        if fault := _lack(outcome):
            found.append(f"ask {outcome.act.ask} at {outcome.act.at_ms} ms ({outcome.ask.path}): {fault}")
    return found


def _lack(outcome: Outcome) -> str:
    if outcome.broken:
        has_left = isinstance(outcome.act.fate, Cut)
        return "" if has_left else f"the answer is not whole: {outcome.broken}; status {outcome.status}"
    if outcome.status >= _FAILED:
        return f"status {outcome.status}: {outcome.body[-200:]!r}"
    try:
        answer = answer_of(outcome.ask, outcome.status, outcome.body)
    except (ValueError, KeyError, msgspec.DecodeError) as error:
        return f"no answer: {error!r}: {outcome.body[-200:]!r}"
    if outcome.ask.is_stream and outcome.status == OK and answer.n_endings != 1:
        return f"{answer.n_endings} ends"
    if answer.error in _CANCELLED | _CRASHED and not isinstance(outcome.act.fate, Cancel):
        return f"it ended with {answer.error}"
    return ""


def _fault(outcome: Outcome, alone: Answer) -> str:
    if outcome.broken and not isinstance(outcome.act.fate, Cut):
        return f"the answer is not whole: {outcome.broken}; status {outcome.status}"
    if outcome.status == 0 or (outcome.status == _FAILED and outcome.may_fail):
        return ""
    try:
        answer = answer_of(outcome.ask, outcome.status, b"" if _is_partial_body(outcome) else outcome.body)
    except (ValueError, KeyError, msgspec.DecodeError) as error:
        return f"no answer: {error!r}: {outcome.body[-200:]!r}"
    return _compared(outcome, answer, alone)


def _compared(outcome: Outcome, answer: Answer, alone: Answer) -> str:
    if outcome.broken:
        found = excesses(answer, alone) if outcome.status == alone.status == OK else []
    elif answer.error and answer.error != alone.error and _may_end(outcome, answer.error):
        found = [f"{answer.n_endings} ends"] if answer.n_endings != 1 else excesses(answer, alone)
    elif answer.error:
        # Text that was not sent when a job failed is never sent, and that depends on the moment.
        found = [] if answer.error == alone.error else [answer.error]
        found += sorted({*excesses(answer, alone)} & {*excesses(alone, answer)})
    else:
        return " | ".join(differences(answer, alone))
    return ", ".join(f"more than alone: {name}" for name in found)


def _is_partial_body(outcome: Outcome) -> bool:
    """True if a body that is no stream broke off: there is nothing to compare."""
    return bool(outcome.broken) and not (outcome.ask.is_stream and outcome.status == OK)


def _may_end(outcome: Outcome, code: str) -> bool:
    if isinstance(outcome.act.fate, Cancel) and code in _CANCELLED:
        return True
    return outcome.may_fail and code in _CRASHED
