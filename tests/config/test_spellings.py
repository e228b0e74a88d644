"""Other spellings of flags: the predecessor's, which work, and hints for an unknown flag or variable, which name
nothing hidden and nothing that does not exist.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import rich_click as click

from tests.config.given import parse
from tests.record.rows import read
from worker.cli import setting_options
from worker.commands.generate import generate
from worker.config.option import flag_name
from worker.config.settings import options
from worker.config.spellings import (
    DEVICE_NUMBERS,
    OF_A_REQUEST,
    device_asked_for,
    flag_hint,
    ignored,
    is_llama_servers,
    llama_server_flags,
    unread,
)
from worker.errors import UsageError

HERE = Path(__file__).parent
FLAGS = llama_server_flags()

SHORT = {flag: option for option in options() for flag in option.opts if not flag.startswith("--")}
"""llama-server's flags that are flags here."""


def flags_of(params: Collection[click.Parameter]) -> set[str]:
    return {name for param in params if isinstance(param, click.Option) and not param.hidden for name in param.opts}


SERVE, GENERATE = flags_of(setting_options()), flags_of(generate.params)


@pytest.mark.parametrize("case", read(HERE / "devices.jsonl"), ids=lambda case: str(case["given"]))
def test_the_device_the_flags_choose_together(case: dict[str, Any]) -> None:
    if "refused" not in case:
        assert device_asked_for(case["given"]) == case["device"]
        return
    with pytest.raises(UsageError, match=case["refused"]):
        device_asked_for(case["given"])


@pytest.mark.parametrize("flag", [flag_name(name) for name in DEVICE_NUMBERS])
@pytest.mark.parametrize("backend", [[], ["--backend=cpu"], ["--backend=cuda"]])
def test_a_number_outside_0_to_999_is_refused_also_where_it_would_be_ignored(flag: str, backend: list[str]) -> None:
    for text in ("-1", "1000", "", "one", "1.0", "\u0661", " 1", "99999999999999999999"):
        with pytest.raises(UsageError, match=rf"{flag}: .* allowed is 0\.\.999"):
            parse(["--model=m.gguf", *backend, f"{flag}={text}"], {})


@pytest.mark.parametrize("backend", ["rocm", "CUDA", ""])
def test_an_unknown_backend_is_refused_with_those_there_are(backend: str) -> None:
    with pytest.raises(UsageError, match=r"--backend: .*'cpu', 'cuda', 'metal', 'accelerate'"):
        parse(["--model=m.gguf", "--device=cpu", "--backend", backend], {})


def test_ignored_flags_are_reported_by_name_only() -> None:
    params = {"hive_url": "http://user:secret@hive", "queen_url": None, "kv_cache_size_mb": "-5", "local_mode": True}
    assert ignored(params) == ("--hive-url", "--kv-cache-size-mb", "--local-mode")


@pytest.mark.parametrize("spelling", sorted({spelling for theirs in FLAGS.ours.values() for spelling in theirs}))
def test_every_spelling_of_llama_servers_leads_to_a_flag_of_ours(spelling: str) -> None:
    targets = {target.split(maxsplit=1)[0] for target, theirs in FLAGS.ours.items() if spelling in theirs}
    assert targets <= SERVE | GENERATE
    assert targets & SERVE or targets <= OF_A_REQUEST
    for ours in (SERVE, GENERATE):
        assert flag_hint(spelling, ours) or not targets & ours


@pytest.mark.parametrize("said", FLAGS.advice)
def test_a_flag_of_llama_servers_that_has_none_here_is_said_to_have_none(said: str) -> None:
    """The hint is never a flag of ours that only looks like it."""
    visible = flags_of(setting_options())
    assert FLAGS.advice[said]
    assert {flag: flag_hint(flag, visible) for flag in FLAGS.advice[said]} == dict.fromkeys(FLAGS.advice[said], said)


def test_each_flag_of_llama_servers_has_one_answer() -> None:
    told = [flag for theirs in FLAGS.advice.values() for flag in theirs]
    assert len(told) == len(set(told))
    assert set(told).isdisjoint(flag for theirs in FLAGS.ours.values() for flag in theirs)
    assert set(told).isdisjoint({*SERVE, *GENERATE})
    assert all(map(is_llama_servers, told))
    assert not is_llama_servers("--no-such-flag")


@pytest.mark.parametrize("flag", SHORT)
@pytest.mark.parametrize("is_one_word", [False, True])
def test_a_short_flag_is_the_long_one(flag: str, *, is_one_word: bool) -> None:
    option = SHORT[flag]
    given = [] if option.is_flag else ["on" if option.name == "flash_attn" else "64"]
    beside = ["--ubatch-size=64", "--worker-id=w", *([] if option.name == "model" else ["-m", "m.gguf"])]
    short = [f"{flag}={given[0]}"] if is_one_word and given else [flag, *given]
    assert parse([*beside, *short], {}) == parse([*beside, flag_name(option.name), *given], {})


@pytest.mark.parametrize(
    "flag", sorted({one for theirs in FLAGS.ours.values() for one in theirs if not one.startswith("--")})
)
def test_a_flag_that_begins_like_a_short_one_is_not_taken_for_it(flag: str) -> None:
    """A cluster of short flags would be: `-tb 4` would mean `-t b`."""
    with pytest.raises(click.NoSuchOption):
        parse(["-m", "m.gguf", flag, "4"], {})


@pytest.mark.parametrize("typed", ["org/repo", "org/repo:Q4_K_M", "hf:org/repo:Q4_K_M", "hf:org/repo::file=x.gguf"])
@pytest.mark.parametrize("flag", ["-hf", "--hf-repo"])
def test_a_repository_flag_names_the_model_on_the_hub(flag: str, typed: str) -> None:
    assert parse([flag, typed], {"LLORCH_MODEL": "other"}).model == f"hf:{typed.removeprefix('hf:')}"


@pytest.mark.parametrize("name", [option.name for option in options()])
def test_underscores_are_taken_for_dashes(name: str) -> None:
    flag = flag_name(name)
    assert flag_hint(f"--{name}", SERVE - {f"--{name}"}) == f"did you mean {flag}?" or "_" not in name


@pytest.mark.parametrize("told", read(HERE / "hints.jsonl"), ids=lambda told: f"{told['command']} {told['flag']}")
def test_a_hint_names_flags_of_its_own_command(told: dict[str, str]) -> None:
    assert flag_hint(told["flag"], {"serve": SERVE, "generate": GENERATE}[told["command"]]) == told["hint"]


@pytest.mark.parametrize("name", [option.name for option in options()])
def test_a_variable_that_is_a_setting_is_read(name: str) -> None:
    both = {"LLORCH_API_TOKEN": "x", "LLORCH_API_KEY": "x"}
    assert unread({f"LLORCH_{name.upper()}": "x", "LLORCH_CONFIG": "x", **both}) == []


@pytest.mark.parametrize("name", ["LLORCH_CONFIG", *(option.envvar for option in options())])
def test_a_variable_with_a_letter_too_many_is_reported_with_the_likely_name(name: str) -> None:
    ((told, said),) = unread({f"{name}S": "secret", "PATH": "/bin"})
    assert (told, said) == (f"{name}S", f"no setting has this name; did you mean {name}?")


def test_variables_that_others_set_or_read_are_no_mistake() -> None:
    names = ["LLORCH_SERVICE_HOST", "LLORCH_SERVICE_PORT_HTTP", "LLORCH_PORT_8080_TCP_ADDR", "LLORCH_RUN_ID"]
    names += ["LLORCH_TEST_MODEL_PATH", "NOT_LLORCH"]
    addresses = {"LLORCH_WORKER_PORT": "tcp", "LLORCH_PORT_8080_TCP": "tcp", "LLORCH_MAX_QUEUE_PORT": "sctp"}
    others = {name: f"{scheme}://10.0.0.1:8080" for name, scheme in addresses.items()}
    assert unread(dict.fromkeys(names, "x") | others) == []
    assert unread({"LLORCH_XYZZY": "1"}) == [("LLORCH_XYZZY", "no setting has this name")]


@pytest.mark.parametrize("scheme", ["tcp", "udp", "sctp"])
def test_the_variable_of_a_service_with_our_name_is_ignored_and_reported_once(scheme: str) -> None:
    service = {
        "LLORCH_PORT": f"{scheme}://10.96.0.7:80",
        "LLORCH_SERVICE_HOST": "10.96.0.7",
        "LLORCH_SERVICE_PORT": "80",
        "LLORCH_PORT_80_TCP": f"{scheme}://10.96.0.7:80",
        "LLORCH_PORT_80_TCP_PORT": "80",
    }
    assert parse(["-m", "m.gguf"], service).port == 8080
    ((name, said),) = unread(service)
    assert name == "LLORCH_PORT"
    assert said.startswith("Kubernetes sets it for a service named llorch, so it is ignored: give the port with --port")
