"""A child process: its log is read line by line, and it is gone afterwards, however it began."""

import os
import signal
import sys

import pytest

from client.child import Child, NotServed, without_settings

pytestmark = pytest.mark.process

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print('{"event":"shutdown"}', file=sys.stderr, flush=True) or sys.exit(0))
print('{"event":"listening","url":"http://127.0.0.1:7"}', file=sys.stderr)
print("no JSON, \\xff", file=sys.stderr)
print('{"event":"ready"}', file=sys.stderr, flush=True)
time.sleep(600)
"""


def child(script: str) -> Child:
    return Child(command=(sys.executable, "-c", script))


def test_a_child_is_ready_when_its_log_says_so_and_gone_afterwards() -> None:
    with child(STUBBORN) as found:
        assert found.ready().port == 7
        assert [entry["event"] for entry in found.log] == ["listening", "", "ready"]
    assert found.process.poll() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(found.process.pid, signal.SIGKILL)


def test_a_child_that_ends_before_it_is_ready_is_reported_with_its_last_line() -> None:
    script = """import sys; print('{"event":"x","message":"no such model"}', file=sys.stderr); sys.exit(3)"""
    with child(script) as found:
        for _ in range(2):
            with pytest.raises(NotServed, match=r"^the worker ended before it was ready: no such model$"):
                found.wait_for("ready")
    assert found.process.poll() == 3


def test_a_child_that_says_nothing_is_not_waited_for_for_ever() -> None:
    with child("import time; time.sleep(600)") as found:
        found.patience_s = 0.1
        with pytest.raises(NotServed, match=r"was not ready, and wrote nothing for 0\.1 s"):
            found.wait_for("ready")
        found.patience_s = 30.0


def test_a_child_gets_no_settings_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLORCH_PORT", "1")
    monkeypatch.setenv("LANG", "C.UTF-8")
    assert without_settings().get("LANG") == "C.UTF-8"
    assert "LLORCH_PORT" not in without_settings()
