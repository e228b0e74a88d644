"""What an unknown flag or variable may have meant: a hint that names nothing hidden and nothing that is not there."""

from collections.abc import Collection

import pytest
import rich_click as click

from worker.cli import setting_options
from worker.commands.generate import generate
from worker.config.settings import flag_name, options
from worker.config.spellings import LLAMA_SERVER, OF_A_REQUEST, flag_hint, unread


def flags_of(params: Collection[click.Parameter]) -> set[str]:
    return {name for param in params if isinstance(param, click.Option) and not param.hidden for name in param.opts}


SERVE, GENERATE = flags_of(setting_options()), flags_of(generate.params)


@pytest.mark.parametrize("spelling", sorted({spelling for theirs in LLAMA_SERVER.values() for spelling in theirs}))
def test_every_spelling_of_llama_servers_leads_to_a_flag_of_ours(spelling: str) -> None:
    targets = {target.split(maxsplit=1)[0] for target, theirs in LLAMA_SERVER.items() if spelling in theirs}
    assert targets <= SERVE | GENERATE
    assert targets & SERVE or targets <= OF_A_REQUEST
    for ours in (SERVE, GENERATE):
        assert flag_hint(spelling, ours) or not targets & ours


@pytest.mark.parametrize("name", [option.name for option in options()])
def test_underscores_are_taken_for_dashes(name: str) -> None:
    flag = flag_name(name)
    assert flag_hint(f"--{name}", SERVE - {f"--{name}"}) == f"did you mean {flag}?" or "_" not in name


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("-m", "did you mean --model?"),
        ("-ngl", "did you mean --gpu-layers?"),
        ("--n_gpu_layers", "did you mean --gpu-layers?"),
        ("-hf", "did you mean --model hf:ORG/REPO?"),
        ("--temp", "each request says its own temperature"),
        ("--repeat-penalty", "each request says its own repetition_penalty"),
        ("-n", "did you mean --max-tokens-out?"),
        ("--prot", "did you mean --port or --host?"),
        ("--jinja", ""),
        ("-x", ""),
    ],
)
def test_a_hint_of_serve_is_worded_so(flag: str, hint: str) -> None:
    assert flag_hint(flag, SERVE) == hint


def test_a_hint_of_generate_names_its_own_flags() -> None:
    assert flag_hint("--temp", GENERATE) == "did you mean --temperature?"
    assert flag_hint("-n", GENERATE) == "did you mean --max-tokens?"


@pytest.mark.parametrize("name", [option.name for option in options()])
def test_a_variable_that_is_a_setting_is_read(name: str) -> None:
    assert unread({f"LLORCH_{name.upper()}": "x", "LLORCH_API_TOKEN": "x", "LLORCH_CONFIG": "x"}) == []


@pytest.mark.parametrize("name", ["LLORCH_CONFIG", *(option.envvar for option in options())])
def test_a_variable_with_a_letter_too_many_is_told_with_the_likely_name(name: str) -> None:
    ((told, said),) = unread({f"{name}S": "secret", "PATH": "/bin"})
    assert (told, said) == (f"{name}S", f"no setting has this name; did you mean {name}?")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LLORCH_SERVICE_HOST", "10.0.0.1"),
        ("LLORCH_SERVICE_PORT_HTTP", "8080"),
        ("LLORCH_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("LLORCH_WORKER_PORT", "tcp://10.0.0.1:8080"),
        ("LLORCH_RUN_ID", "x"),
        ("LLORCH_TEST_MODEL_PATH", "x"),
        ("LLORCH_API_KEY", ""),
        ("NOT_LLORCH", "x"),
    ],
)
def test_variables_that_others_set_or_read_are_nobodys_mistake(name: str, value: str) -> None:
    assert unread({name: value}) == []


def test_a_variable_that_resembles_nothing_is_told_too() -> None:
    assert unread({"LLORCH_XYZZY": "1"}) == [("LLORCH_XYZZY", "no setting has this name")]
