"""Flag > environment > config file > default, for every setting there is."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import rich_click as click
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.given import NEEDED, parse
from tests.record.rows import read
from worker.config.option import SettingOption, TextType, flag_name
from worker.config.settings import Settings, options
from worker.errors import UsageError

MODEL = ["--model", "m.gguf"]


def values_of(option: SettingOption) -> st.SearchStrategy[Any]:
    """Values the setting may have."""
    match option.type:
        case click.Choice(choices=choices):
            return st.sampled_from(choices)
        case TextType(name="url"):
            return st.sampled_from(["http://pool:1/ready", "https://10.0.0.1/x", "http://[::1]:8/"])
        case TextType(name="origin"):
            return st.sampled_from(["http://localhost:3000", "https://[::1]", "tauri://localhost"])
        case TextType(name="endpoint"):
            return st.sampled_from(["tcp://127.0.0.1:0", "tcp://127.0.0.2:5557", "tcp://[::1]:1"])
        case TextType(name="json"):
            objects = st.dictionaries(st.text(st.characters(codec="ascii")), st.booleans() | st.integers())
            return objects.map(json.dumps)
        case TextType(forms=forms, pattern=pattern) if forms:
            return st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True)
        case click.FloatRange(min=low, max=high):
            return st.floats(low, high).map(lambda number: float(f"{number:.6f}")).filter(lambda n: n >= 0.1)
        case click.IntRange(min=low, max=high):
            return st.integers(low, high)
    if option.is_flag:
        return st.just(True)
    plain = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="~"), min_size=1)
    return plain.map(Path) if isinstance(option.type, click.Path) else plain


def as_toml(value: Any) -> str:
    return json.dumps(str(value) if isinstance(value, Path) else value)


def on_the_flags(name: str, value: Any) -> list[str]:
    return [flag_name(name)] if value is True else [f"{flag_name(name)}={value}"]


@pytest.mark.parametrize("option", options(), ids=lambda option: option.name)
def test_the_highest_source_that_speaks_decides(
    option: SettingOption, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = tmp_path_factory.mktemp("config") / "llorch.toml"
    sources, name = st.none() | values_of(option), option.name

    @settings(max_examples=20)
    @given(sources, sources, sources)
    def law(flag: Any, variable: Any, key: Any) -> None:
        config.write_text("" if key is None else f"{name.replace('_', '-')} = {as_toml(key)}\n", encoding="utf-8")
        environ = {"LLORCH_CONFIG": str(config)}
        if variable is not None:
            environ[str(option.envvar)] = str(variable)
        argv = [*NEEDED.get(name, ()), *([] if flag is None else on_the_flags(name, flag))]
        found = getattr(
            parse([*([] if name == "model" and (flag or variable or key) else MODEL), *argv], environ), name
        )
        expected = next((value for value in (flag, variable, key) if value is not None), None)
        if expected is not None:
            expected = (expected,) if option.multiple else expected
            assert found == expected
            assert type(found) is type(expected)
        elif name not in {"model", "worker_id"}:
            assert found == getattr(Settings(), name)

    law()


def test_no_source_gives_the_defaults() -> None:
    assert parse([*MODEL, "--worker-id=w"], {}) == Settings(model="m.gguf", worker_id="w")


WORDS = {"1": True, "true": True, "YES": True, "On": True, "0": False, "false": False, "no": False, "OFF": False}


@pytest.mark.parametrize(("word", "expected"), WORDS.items())
def test_a_switch_in_the_environment_has_four_words_each_way(word: str, expected: bool) -> None:
    assert parse(MODEL, {"LLORCH_SSE_EVENT_NAMES": word}).sse_event_names is expected


@pytest.mark.parametrize("name", ["LLORCH_CONFIG", *(one.envvar for one in options() if one.name != "api_key")])
def test_an_empty_variable_counts_as_not_given(name: str) -> None:
    empty, unset = parse([*MODEL, "--worker-id=w"], {name: ""}), parse([*MODEL, "--worker-id=w"], {})
    assert empty == unset


@pytest.mark.parametrize("token", ["", "  "])
def test_an_empty_token_never_opens_the_worker(token: str, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'api-key = "{token}"')
    for argv, environ in (
        (MODEL, {"LLORCH_API_TOKEN": token}),
        (MODEL, {"LLORCH_API_KEY": token}),
        (MODEL, {"LLORCH_API_TOKEN": "good", "LLORCH_API_KEY": token}),
        (MODEL, {"LLORCH_API_TOKEN": token, "LLORCH_API_KEY": "good"}),
        ([*MODEL, f"--api-key={token}"], {"LLORCH_API_TOKEN": "good"}),
        ([*MODEL, "--config", str(config)], {}),
    ):
        with pytest.raises(UsageError, match="token is empty"):
            parse(argv, environ)


@pytest.mark.parametrize("names", [["LLORCH_API_TOKEN"], ["LLORCH_API_KEY"], ["LLORCH_API_TOKEN", "LLORCH_API_KEY"]])
def test_the_token_s_variable_has_two_names(names: list[str]) -> None:
    assert parse(MODEL, dict.fromkeys(names, "s3cret")).api_key == "s3cret"
    assert parse([*MODEL, "--api-key=other"], dict.fromkeys(names, "s3cret")).api_key == "other"


def test_two_tokens_are_refused_and_neither_is_shown_and_one_is_blamed_under_its_own_name() -> None:
    with pytest.raises(UsageError, match=r"LLORCH_API_TOKEN and LLORCH_API_KEY .* different values") as raised:
        parse(MODEL, {"LLORCH_API_TOKEN": "first", "LLORCH_API_KEY": "second"})
    assert "first" not in str(raised.value)
    assert "second" not in str(raised.value)
    with pytest.raises(UsageError, match=r"^LLORCH_API_KEY: the API token is no"):
        parse(MODEL, {"LLORCH_API_KEY": "tökén"})


def test_keys_are_spelled_with_either_dash(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("max-queue = 3\nctx_size = 512\ngpu-layers = 20\ninference-timeout-sec = 60\n")
    found = parse([*MODEL, "--config", str(config)], {})
    assert (found.max_queue, found.ctx_size, found.gpu_layers, found.inference_timeout_sec) == (3, 512, "20", 60.0)
    assert type(found.inference_timeout_sec) is float


def test_a_home_directory_is_understood_where_no_shell_has_seen_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.toml").write_text("port = 7")
    (tmp_path / "c.toml").write_text('port = 8\ncatalog = "~/c.toml"\nparity-report = "~/r.json"')
    assert parse(MODEL, {"LLORCH_CONFIG": "~/a.toml"}).port == 7
    found = parse([*MODEL, "--config=~/c.toml"], {"LLORCH_CONFIG": "~/a.toml", "LLORCH_MODELS_DIR": "~/m"})
    assert (found.catalog, found.parity_report) == (tmp_path / "c.toml", tmp_path / "r.json")
    assert (found.models_dir, found.port) == (tmp_path / "m", 8), "the flag beats the variable"
    with pytest.raises(UsageError, match="LLORCH_CONFIG: '~nobody-of-that-name/c' is not a path"):
        parse(MODEL, {"LLORCH_CONFIG": "~nobody-of-that-name/c"})


@pytest.mark.parametrize("mistake", read(Path(__file__).with_name("mistakes.jsonl")), ids=lambda one: one["toml"])
def test_a_mistake_in_the_config_file_is_found_even_where_a_flag_overrides_it(
    mistake: dict[str, Any], tmp_path: Path
) -> None:
    """`more`: how often the last character is repeated."""
    config, toml = tmp_path / "c.toml", mistake["toml"]
    config.write_bytes((toml + toml[-1] * mistake.get("more", 0)).encode("latin-1"))
    with pytest.raises(UsageError, match=mistake["said"]) as raised:
        parse([*MODEL, "--config", str(config)], {})
    assert str(config) in str(raised.value)
    assert "12345" not in str(raised.value)


def test_a_config_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.toml"):
        with pytest.raises(UsageError, match=f"{path}: the config file cannot be read"):
            parse([*MODEL, "--config", str(path)], {})


@pytest.mark.parametrize("case", read(Path(__file__).with_name("sources.jsonl")), ids=str)
def test_a_bad_value_is_named_with_its_place_and_a_legacy_device_flag_counts_as_a_flag(case: dict[str, Any]) -> None:
    """`more`: how often the last character of the last word is repeated."""
    argv, environ = [*MODEL, *case["argv"]], case["environ"]
    argv[-1] += argv[-1][-1:] * case.get("more", 0)
    if "device" in case:
        assert parse(argv, environ).device == case["device"]
        return
    with pytest.raises(UsageError, match=case["said"]) as raised:
        parse(argv, environ)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 300
