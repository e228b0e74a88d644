"""The rules a value must satisfy, and that the table names every setting once."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import rich_click as click
from hypothesis import given
from hypothesis import strategies as st

from tests.config.given import NEEDED, parse
from tests.record.rows import read
from worker.config.combinations import check
from worker.config.engine import read_chat_template
from worker.config.engine_settings import DEFAULT_PROMPT_CHARS
from worker.config.option import SettingOption, TextType, flag_name
from worker.config.settings import Settings, flags_of, options, typed_name
from worker.errors import UsageError

HERE = Path(__file__).parent
MODEL = ["--model", "m.gguf"]
RANGED = [option for option in options() if isinstance(option.type, click.IntRange | click.FloatRange)]
PATTERNED = [option for option in options() if isinstance(option.type, TextType) and option.type.forms]
VALUES = [
    (row["setting"], value, is_good)
    for row in read(HERE / "values.jsonl")
    for is_good in (True, False)
    for value in row["good" if is_good else "bad"]
]


def value_of(name: str, value: object) -> Any:
    """The setting, from a command line that gives it."""
    beside = [] if name == "model" else [*MODEL, *NEEDED.get(name, [])]
    return getattr(parse([*beside, f"{flag_name(name)}={value}"], {}), name)


def own_id(**given: Any) -> str:
    return Settings(**{"model": "m.gguf", "host": "127.0.0.1", "port": 8080, **given}).worker_id


def test_a_worker_has_the_same_id_after_a_restart_or_the_one_it_was_given() -> None:
    assert own_id() == own_id(parallel=3)
    assert re.fullmatch(r"worker-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", own_id())
    argv = [*MODEL, "--port", "9000"]
    assert parse(argv, {}).worker_id == parse(argv, {}).worker_id != parse(MODEL, {}).worker_id
    assert parse(argv, {"LLORCH_WORKER_ID": "w-7"}).worker_id == "w-7"


def test_two_workers_on_one_machine_have_different_ids() -> None:
    others: list[dict[str, Any]] = [{"port": 8081}, {"host": "127.0.0.2"}, {"model": "n.gguf"}, {"model_ref": "\udcff"}]
    ids = {own_id(**other) for other in [{}, *others, {"port": 0}, {"port": 0}]}
    assert len(ids) == len(others) + 3, "on any free port each has one of its own"


def test_every_setting_has_its_own_flag_variable_and_explanation() -> None:
    assert len({option.opts[0] for option in options()}) == len(options())
    assert all(option.help for option in options())
    assert [one.name for one in options() if one.envvar != f"LLORCH_{one.name.upper()}"] == ["api_key"]


def test_every_flag_is_on_a_page() -> None:
    root = Path(__file__).parents[2]
    pages = "".join(page.read_text() for page in [root / "README.md", *(root / "docs").rglob("*.md")])
    named = set(re.findall(r"--[a-z][a-z-]+", pages))
    assert [option.opts[0] for option in options() if option.opts[0] not in named] == []


def test_every_number_has_a_range() -> None:
    numbers = [f.name for f in fields(Settings) if f.type in (int, float, int | None, float | None)]
    assert [option.name for option in RANGED] == numbers


@pytest.mark.parametrize("option", RANGED, ids=lambda option: option.name)
def test_a_range_includes_both_its_ends_and_nothing_beyond(option: SettingOption) -> None:
    assert isinstance(option.type, click.IntRange | click.FloatRange)
    assert option.type.min is not None
    assert option.type.max is not None
    for good in (option.type.min, option.type.max):
        assert value_of(option.name, good) == good
    for bad in (option.type.min - 1, option.type.max + 1):
        with pytest.raises(UsageError, match=f"{option.opts[0]}: .* is not in the range {option.type.min:g}<=x<="):
            value_of(option.name, bad)
    with pytest.raises(UsageError, match=option.opts[0]):
        value_of(option.name, "nan")
    with pytest.raises(UsageError, match=f"Allowed is {option.type.min} to {option.type.max}"):
        value_of(option.name, "many")


@pytest.mark.parametrize("option", PATTERNED, ids=lambda option: option.name)
def test_every_pattern_is_reported_in_words_where_it_is_broken(option: SettingOption) -> None:
    assert isinstance(option.type, TextType)
    with pytest.raises(UsageError, match=f"'%%' is not valid; allowed is {re.escape(option.type.forms)}$"):
        value_of(option.name, "%%")


@pytest.mark.parametrize(("name", "value", "is_good"), VALUES)
def test_good_values_pass_and_bad_ones_are_named_with_their_flag_in_one_line(
    name: str, value: str, *, is_good: bool
) -> None:
    if is_good:
        assert value_of(name, value) == value
        return
    with pytest.raises(UsageError) as raised:
        value_of(name, value)
    assert flag_name(name) in str(raised.value)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("origin", read(HERE / "origins.jsonl"), ids=lambda origin: origin["typed"])
def test_an_origin_is_what_browsers_send_however_it_is_typed(origin: dict[str, str]) -> None:
    assert value_of("cors_origin", origin["typed"]) == (origin["sent"],)


@pytest.mark.parametrize(
    ("name", "both"),
    [
        ("cors_origin", ("http://a:81", "tauri://localhost")),
        ("allowed_host", ("llm.example.org", "*.pool.example.org")),
    ],
)
def test_several_values_may_come_from_each_source(tmp_path: Path, name: str, both: tuple[str, ...]) -> None:
    flag, variable, config = flag_name(name), f"LLORCH_{name.upper()}", tmp_path / "config.toml"
    argv = [*MODEL, "--config", str(config)]
    found = []
    for text in (f"{list(both)}", f"'{both[0]}'", "[]"):
        config.write_text(f"{name} = {text}")
        found.append(getattr(parse(argv, {}), name))
    assert found == [both, both[:1], ()]
    for between in (" ", ",", ", ", "\n"):
        assert getattr(parse(MODEL, {variable: between.join(both)}), name) == both
    assert getattr(parse([*MODEL, flag, both[0], flag, both[1]], {}), name) == both
    assert getattr(parse([*MODEL, flag, both[1]], {variable: both[0]}), name) == both[1:]


def test_a_mistake_in_one_of_several_origins_names_that_one() -> None:
    with pytest.raises(UsageError, match=r"^LLORCH_CORS_ORIGIN: 'a\.b' is not valid; allowed is http") as raised:
        parse(MODEL, {"LLORCH_CORS_ORIGIN": "http://a, a.b"})
    assert "http://a," not in str(raised.value)


@pytest.mark.parametrize("token", ["", " ", "\n", "tökén-secret", "secret\n", " secret", "sec\x00ret", "sec\ud800ret"])
def test_a_token_no_header_can_carry_is_refused_and_never_shown(token: str) -> None:
    with pytest.raises(UsageError, match="API token") as raised:
        value_of("api_key", token)
    assert "sec" not in str(raised.value)


@pytest.mark.parametrize("name", ["device", "port", "flash_attn", "callback_url"])
def test_a_long_value_is_cut_in_the_message(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        value_of(name, "x" * 100_000)
    assert len(str(raised.value)) < 300


def test_limits_that_are_not_given_are_the_protocols_at_execute_and_none_at_v1() -> None:
    free, limited = Settings(), Settings(max_tokens_out=7, inference_timeout_sec=2.5)
    assert (free.max_tokens_out, free.inference_timeout_sec) == (None, None)
    assert (free.execute_tokens_out, free.execute_timeout_s) == (2048, 300.0)
    assert (limited.execute_tokens_out, limited.execute_timeout_s) == (7, 2.5)
    assert free.max_prompt_chars == 32_768
    assert free.max_body_bytes == Settings(max_prompt_chars=1).max_body_bytes == 2 * 2**20


@pytest.mark.parametrize(("given", "n_bytes"), [("auto", -1), ("0", 0), ("000", 0), ("512", 512 * 2**20)])
def test_the_prefix_cache_is_given_in_mib_or_left_to_the_engine(given: str, n_bytes: int) -> None:
    assert check(Settings(prefix_cache_mb=given)).prefix_cache_bytes == n_bytes


@pytest.mark.parametrize("most", [1, DEFAULT_PROMPT_CHARS, DEFAULT_PROMPT_CHARS + 1, 2**21])
def test_the_longest_prompt_fits_a_body_however_it_is_escaped(most: int) -> None:
    escaped = 12  # "\\ud83d\\ude00" for one character beyond U+FFFF
    assert len(json.dumps("😀")) - 2 == escaped
    assert check(Settings(max_prompt_chars=most)).max_body_bytes >= max(2 * 2**20, most * escaped + 2**20)


@pytest.mark.parametrize(("parallel", "ctx_size"), [(8, 16), (2, 33), (256, 4351)])
def test_more_slots_than_can_run_over_the_context_are_refused_with_what_would_work(
    parallel: int, ctx_size: int
) -> None:
    asked = Settings(parallel=parallel, ctx_size=ctx_size)
    with pytest.raises(UsageError, match=f"--parallel {parallel} .*--ctx-size is {ctx_size}") as raised:
        check(asked)
    found = re.search(r"for \d+ jobs is (\d+), the largest --parallel for \d+ cells is (\d+)", str(raised.value))
    assert found is not None
    min_cells, max_jobs = int(found[1]), int(found[2])
    check(replace(asked, ctx_size=min_cells))
    check(replace(asked, parallel=max_jobs))
    for still_wrong in (replace(asked, ctx_size=min_cells - 1), replace(asked, parallel=max_jobs + 1)):
        with pytest.raises(UsageError):
            check(still_wrong)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"{{ 'caf\xe9' }}", "not UTF-8 at byte 7"),
        (b" \n", "is empty"),
        (b"x" * (2**20 + 1), "more than 1048576 bytes"),
        ("é".encode() * 2**20, "more than 1048576 bytes"),
    ],
)
def test_a_template_is_read_as_it_is_and_a_file_that_is_none_is_reported(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "template.jinja"
    asked = Settings(chat_template=path)
    path.write_bytes("{{ 'é' }}\r\n".encode())
    assert read_chat_template(asked) == "{{ 'é' }}\r\n"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=f"^--chat-template {path} .*{said}"):
        read_chat_template(asked)


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--cache-type-k=q8_0 --cache-type-v=q4_0 --flash-attn=on --threads=3 --deterministic",
        "--device=cuda:1 --gpu-layers=all --require-full-offload --ctx-size=4096",
        "--split-mode=layer --tensor-split=3,1 --swa-full=off",
    ],
)
def test_settings_become_flags_that_give_them_again(flags: str) -> None:
    asked = parse([*MODEL, "--port=0", *flags.split()], {})
    again = parse([*MODEL, *flags_of(asked, "Device and memory", also=("deterministic",))], {})
    assert replace(again, worker_id="w", port=0) == replace(asked, worker_id="w")


_WORDS = st.text("abcXYZ019_", min_size=1)


def test_the_reported_name_is_what_the_user_typed_unless_another_is_given() -> None:
    typed = Settings(model="hf:org/repo:Q4_K_M")
    named = replace(typed, model_ref="hf:a/b")
    assert (typed.reported_model_ref, named.reported_model_ref) == (typed.model, "hf:a/b")
    served = (typed, named, replace(named, served_model_name="mine"), Settings())
    names = ["org/repo:Q4_K_M", "hf:a/b", "mine", "in the file"]
    assert [one.served_name("in the file") for one in served] == names


@pytest.mark.parametrize("before", ["./", "/", "../", "~/", "/srv/models/", "a/b/", "file:/x/", "file:"])
def test_of_a_path_it_is_the_file_s_name(before: str) -> None:
    assert typed_name(f"{before}weights") == "weights"
    for file in ("m.gguf", "M.GGUF", "m-00001-of-00002.gguf", "日本語 x.gguf"):
        assert {typed_name(place + file) for place in ("", "a/", before)} == {file}


@given(_WORDS, _WORDS, st.sampled_from(["", ":Q4_K_M", "@v1", "::file=x.gguf", "@v1:q8_0"]))
def test_of_a_repository_it_is_what_was_typed_without_its_prefix(org: str, repo: str, more: str) -> None:
    assert typed_name(f"hf:{org}/{repo}{more}") == f"{org}/{repo}{more}"
    for name in (f"{org}/{repo}", f"{org}/{repo}:Q4_K_M", repo):
        assert typed_name(name) == name


@given(st.text(min_size=1))
def test_it_never_shows_a_directory(typed: str) -> None:
    assert typed_name(f"/secret/{typed}").count("/") == 0
