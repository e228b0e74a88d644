"""The rules a value must satisfy, and that the table names every setting once."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import rich_click as click

from tests.config.given import NEEDED, parse
from worker.config.combinations import check
from worker.config.engine import read_chat_template
from worker.config.engine_settings import CACHE_TYPES, DEFAULT_PROMPT_CHARS, FlashAttn
from worker.config.option import SettingOption, TextType, flag_name
from worker.config.settings import Settings, flags_of, options
from worker.errors import UsageError

RANGED = [option for option in options() if isinstance(option.type, click.IntRange | click.FloatRange)]
PATTERNED = [option for option in options() if isinstance(option.type, TextType) and option.type.forms]


def given(name: str, value: object) -> Any:
    """The setting, from a command line that gives it."""
    beside = [] if name == "model" else ["--model=m.gguf", *NEEDED.get(name, [])]
    return getattr(parse([*beside, f"{flag_name(name)}={value}"], {}), name)


def test_the_defaults_satisfy_their_own_rules() -> None:
    assert check(Settings()).port == 8080


HERE = {"model": "m.gguf", "host": "127.0.0.1", "port": 8080}


def own_id(**given: Any) -> str:
    return Settings(**{**HERE, **given}).worker_id


def test_a_worker_without_a_given_id_has_the_same_one_after_a_restart() -> None:
    assert own_id() == own_id(parallel=3)
    assert re.fullmatch(r"worker-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", own_id())


@pytest.mark.parametrize("other", [{"port": 8081}, {"host": "127.0.0.2"}, {"model": "n.gguf"}, {"model_ref": "\udcff"}])
def test_two_workers_on_one_machine_have_different_ids(other: dict[str, Any]) -> None:
    assert own_id(**other) != own_id()


def test_workers_on_any_free_port_have_ids_of_their_own() -> None:
    assert own_id(port=0) != own_id(port=0)


def test_the_same_command_line_gives_the_same_id_and_a_given_one_is_kept() -> None:
    argv = ["--model", "m.gguf", "--port", "9000"]
    assert parse(argv, {}).worker_id == parse(argv, {}).worker_id != parse([*argv[:2]], {}).worker_id
    assert parse(argv, {"LLORCH_WORKER_ID": "w-7"}).worker_id == "w-7"


def test_every_setting_has_its_own_flag_variable_and_explanation() -> None:
    assert (
        len({option.opts[0] for option in options()}) == len({option.envvar for option in options()}) == len(options())
    )
    assert all(option.help for option in options())


def test_every_flag_is_on_a_page() -> None:
    root = Path(__file__).parents[2]
    pages = "".join(page.read_text() for page in [root / "README.md", *(root / "docs").rglob("*.md")])
    named = set(re.findall(r"--[a-z][a-z-]+", pages))
    assert [option.opts[0] for option in options() if option.opts[0] not in named] == []


def test_only_the_token_breaks_the_naming_rule() -> None:
    assert [one.name for one in options() if one.envvar != f"LLORCH_{one.name.upper()}"] == ["api_key"]


def test_limits_that_are_not_given_are_the_protocols_at_execute_and_none_at_v1() -> None:
    free, given_ = Settings(), Settings(max_tokens_out=7, inference_timeout_sec=2.5)
    assert (free.max_tokens_out, free.inference_timeout_sec) == (None, None)
    assert (free.execute_tokens_out, free.execute_timeout_s) == (2048, 300.0)
    assert (given_.execute_tokens_out, given_.execute_timeout_s) == (7, 2.5)


def test_every_number_has_a_range() -> None:
    numbers = [f.name for f in fields(Settings) if f.type in (int, float, int | None, float | None)]
    assert [option.name for option in RANGED] == numbers


@pytest.mark.parametrize("option", RANGED, ids=lambda option: option.name)
def test_a_range_includes_both_its_ends_and_nothing_beyond(option: SettingOption) -> None:
    assert isinstance(option.type, click.IntRange | click.FloatRange)
    assert option.type.min is not None
    assert option.type.max is not None
    for good in (option.type.min, option.type.max):
        assert given(option.name, good) == good
    for bad in (option.type.min - 1, option.type.max + 1):
        with pytest.raises(UsageError, match=f"{option.opts[0]}: .* is not in the range {option.type.min:g}<=x<="):
            given(option.name, bad)
    with pytest.raises(UsageError, match=option.opts[0]):
        given(option.name, "nan")
    with pytest.raises(UsageError, match=f"Allowed is {option.type.min} to {option.type.max}"):
        given(option.name, "many")


@pytest.mark.parametrize("option", PATTERNED, ids=lambda option: option.name)
def test_every_pattern_is_reported_in_words_where_it_is_broken(option: SettingOption) -> None:
    assert isinstance(option.type, TextType)
    with pytest.raises(UsageError, match=f"'%%' is not valid; allowed is {re.escape(option.type.forms)}$"):
        given(option.name, "%%")


GOOD: dict[str, list[str]] = {
    "device": ["auto", "cpu", "metal", "cuda", "cuda:15", "vulkan:0", "3"],
    "gpu_layers": ["all", "0"],
    "split_mode": ["layer", "row"],
    "prefix_cache_mb": ["auto", "0", "9999999"],
    "scheduling": ["fair", "first-come"],
    "prompt_lookup": ["own", "off"],
    "worker_id": ["a", "worker_1.2:3-4", "x" * 256],
    "callback_url": ["http://pool:9200/v2/internal/workers/ready", "https://[::1]:9200/ready?x=1"],
    "advertise_url": ["http://10.0.0.5:65535"],
    "api_key": ["s3cret+/=~"],
    "model": ["models/日本語　 x.gguf"],
    "kv_events": ["tcp://127.0.0.1:5557", "tcp://127.8.9.10:0", "tcp://[::1]:65534"],
    "kv_events_topic": ["kv@10.0.0.1@org/model 1"],
    "chat_template_kwargs": ["{}", '{"enable_thinking": false, "x": [1]}'],
}
BAD: dict[str, list[str]] = {
    "device": ["tpu", "cuda:", "cuda:1000", "cpu:0", "-1", "cuda:\u0661"],
    "gpu_layers": ["some", "-1"],
    "split_mode": ["tensor"],
    "tensor_split": ["1,", "1,-1", "1 1", "a,b"],
    "prefix_cache_mb": ["-1", "1.5", "10000000", "1\u0661"],
    "prompt_lookup": ["true"],
    "scheduling": ["fifo"],
    "worker_id": ["", "a b", "worker/1", "x" * 257],
    "callback_url": [
        *("pool:9200/ready", "ftp://pool/ready", "http:///ready", "http://pool:65536/ready"),
        *("http://pool:0/ready", "http://[::1/ready"),
    ],
    "advertise_url": ["http://a b", "http://pool:65536/ready"],
    "allowed_host": [
        *("", "a.example:8080", "http://a.example", "*.", ".a", "a.", "a.*.b", "**", "*a", "a/b", "-a", "a@b", "[::1]"),
        *("münchen.example", "a\nb", "a,b c"),
    ],
    "cors_origin": [
        *(
            "",
            "*",
            "null",
            "a.example",
            "https://*.example",
            "https://a.example/path",
            "https://a.example?x",
            "http:///",
        ),
        *(
            "https://a.example//",
            "https://user@a.example",
            "http://a:0",
            "http://a:65536",
            "http://a:port",
            "http://[::g]",
        ),
        *(
            "https://münchen.example",
            "http://-a",
            "app://",
            "app://a/b",
            "app://*",
            "app:a",
            "://a",
            "http://a,http://b",
        ),
    ],
    "cache_type_k": ["q2_k"],
    "flash_attn": ["maybe"],
    "log_format": ["xml"],
    "host": [""],
    "kv_events": [
        *("5557", "127.0.0.1:5557", "ipc:///tmp/x", "tcp://*:5557", "tcp://localhost:5557", "tcp://127.0.0.1"),
        *("tcp://127.0.0.1:", "tcp://127.0.0.256:1", "tcp://127.0.0.1:65535", "tcp://127.0.0.1:65536", "tcp://[::g]:1"),
        *("tcp://::1:5557", "tcp://[127.0.0.1]:5557", "tcp://127.0.0.1:5557/", "tcp://[1:]:1"),
    ],
    "kv_events_topic": ["", "a\nb"],
    "model": ["", "a\0b", "a\nb", "\udcff.gguf"],
    "models_dir": ["a\rb"],
    "chat_template": ["a\nb"],
    "chat_template_kwargs": ["no", "[]", "null", '{"a":1e999}', '{"a":}', "{" * 5000, '{"a":' * 5000, '"\udcff"'],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_good_values_pass(name: str, value: str) -> None:
    assert given(name, value) == value


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_bad_values_are_named_with_their_flag_in_one_line(name: str, value: str) -> None:
    with pytest.raises(UsageError) as raised:
        given(name, value)
    assert flag_name(name) in str(raised.value)
    assert str(raised.value).isprintable()


ORIGINS = {
    "http://localhost:3000": "http://localhost:3000",
    "http://localhost:3000/": "http://localhost:3000",
    "https://Chat.Example.org": "https://chat.example.org",
    "HTTPS://chat.example.org:443": "https://chat.example.org",
    "https://chat.example.org:0443/": "https://chat.example.org",
    "https://chat.example.org:80": "https://chat.example.org:80",
    "http://chat.example.org:80": "http://chat.example.org",
    "http://my_app:8000": "http://my_app:8000",
    "http://xn--mnchen-3ya.example": "http://xn--mnchen-3ya.example",
    "http://[::1]:8080": "http://[::1]:8080",
    "http://[0:0::0:1]:80": "http://[::1]",
    "tauri://localhost": "tauri://localhost",
    "http://tauri.localhost": "http://tauri.localhost",
    "app://-": "app://-",
    "app://obsidian.md/": "app://obsidian.md",
    "capacitor://localhost": "capacitor://localhost",
    "vscode-webview://1ab2c3": "vscode-webview://1ab2c3",
    "chrome-extension://abcdefgh": "chrome-extension://abcdefgh",
    "safari-web-extension://E1B2": "safari-web-extension://E1B2",
    "file://": "file://",
}
"""Each accepted spelling of an origin, and the spelling that a browser sends."""


@pytest.mark.parametrize(("typed", "sent"), ORIGINS.items())
def test_an_origin_is_what_browsers_send_however_it_is_typed(typed: str, sent: str) -> None:
    assert given("cors_origin", typed) == (sent,)


def test_several_origins_may_come_from_each_source(tmp_path: Path) -> None:
    both, model = ("http://a:81", "tauri://localhost"), ["--model", "m.gguf"]
    assert parse([*model, "--cors-origin", both[0], "--cors-origin", both[1]], {}).cors_origin == both
    for between in (" ", ",", ", ", "\n"):
        assert parse(model, {"LLORCH_CORS_ORIGIN": between.join(both)}).cors_origin == both
    config = tmp_path / "config.toml"
    for text, found in ((f"{list(both)}", both), (f"'{both[0]}/'", both[:1]), ("[]", ())):
        config.write_text(f"cors-origin = {text}")
        assert parse([*model, "--config", str(config)], {}).cors_origin == found
    assert parse([*model, "--cors-origin", "app://-"], {"LLORCH_CORS_ORIGIN": both[0]}).cors_origin == ("app://-",)
    assert parse(model, {}).cors_origin == parse(model, {"LLORCH_CORS_ORIGIN": ""}).cors_origin == ()


@pytest.mark.parametrize("text", ["1", "[1]", "['http://a', 1]", "[['http://a']]", "['*']", "true"])
def test_in_the_file_every_origin_is_a_text(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"cors-origin = {text}")
    with pytest.raises(UsageError, match=r"config\.toml: cors-origin"):
        parse(["--model", "m.gguf", "--config", str(config)], {})


def test_several_hosts_may_come_from_each_source(tmp_path: Path) -> None:
    both, model = ("llm.example.org", "*.pool.example.org"), ["--model", "m.gguf"]
    assert parse([*model, "--allowed-host", both[0], "--allowed-host", both[1]], {}).allowed_host == both
    assert parse([*model, "--allowed-host", "*"], {}).allowed_host == ("*",)
    for between in (" ", ",", ", "):
        assert parse(model, {"LLORCH_ALLOWED_HOST": between.join(both)}).allowed_host == both
    config = tmp_path / "config.toml"
    config.write_text(f"allowed-host = {list(both)}")
    assert parse([*model, "--config", str(config)], {}).allowed_host == both
    assert parse(model, {}).allowed_host == ()


def test_a_mistake_in_one_of_several_origins_names_that_one() -> None:
    with pytest.raises(UsageError, match=r"^LLORCH_CORS_ORIGIN: 'a\.b' is not valid; allowed is http") as raised:
        parse(["--model", "m.gguf"], {"LLORCH_CORS_ORIGIN": "http://a, a.b"})
    assert "http://a," not in str(raised.value)


@pytest.mark.parametrize("token", ["", " ", "\n", "tökén-secret", "secret\n", " secret", "sec\x00ret", "sec\ud800ret"])
def test_a_token_no_header_can_carry_is_refused_and_never_shown(token: str) -> None:
    with pytest.raises(UsageError, match="API token") as raised:
        given("api_key", token)
    assert "sec" not in str(raised.value)


def test_a_value_is_called_by_the_words_the_user_gave_it_with() -> None:
    with pytest.raises(UsageError, match=r"^LLORCH_PORT: 70000 is not in the range 0<=x<=65535\.$"):
        parse(["--model=m.gguf"], {"LLORCH_PORT": "70000"})


def test_a_long_value_is_cut_in_the_message() -> None:
    for name in ("device", "port", "flash_attn", "callback_url"):
        with pytest.raises(UsageError) as raised:
            given(name, "x" * 100_000)
        assert len(str(raised.value)) < 300


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
@pytest.mark.parametrize("flash_attn", ["auto", "on", "off"])
def test_a_quantised_v_cache_needs_flash_attention(cache_type: str, flash_attn: FlashAttn) -> None:
    settings = replace(Settings(), cache_type_v=cache_type, flash_attn=flash_attn)
    if flash_attn == "off" and cache_type not in {"f32", "f16", "bf16"}:
        with pytest.raises(UsageError, match="--flash-attn"):
            check(settings)
    else:
        assert check(settings) is settings


def test_the_k_cache_may_be_quantised_without_flash_attention() -> None:
    settings = replace(Settings(), cache_type_k="q4_0", flash_attn="off")
    assert check(settings) is settings


@pytest.mark.parametrize(("given", "n_bytes"), [("auto", -1), ("0", 0), ("000", 0), ("512", 512 * 2**20)])
def test_the_prefix_cache_is_given_in_mib_or_left_to_the_engine(given: str, n_bytes: int) -> None:
    assert check(Settings(prefix_cache_mb=given)).prefix_cache_bytes == n_bytes


def test_the_reported_model_ref_is_the_model_unless_another_is_given() -> None:
    assert Settings(model="m").reported_model_ref == "m"
    assert Settings(model="m", model_ref="hf:a/b").reported_model_ref == "hf:a/b"


def test_the_served_name_is_what_the_user_typed() -> None:
    typed = Settings(model="hf:org/repo:Q4_K_M")
    assert typed.served_name("in the file") == "org/repo:Q4_K_M"
    assert replace(typed, model_ref="hf:a/b").served_name("in the file") == "hf:a/b"
    assert replace(typed, model_ref="hf:a/b", served_model_name="mine").served_name("in the file") == "mine"
    assert Settings().served_name("in the file") == "in the file"


@pytest.mark.parametrize("most", [1, DEFAULT_PROMPT_CHARS, DEFAULT_PROMPT_CHARS + 1, 2**21])
def test_the_longest_prompt_fits_a_body_however_it_is_escaped(most: int) -> None:
    escaped = 12  # "\\ud83d\\ude00" for one character beyond U+FFFF
    assert len(json.dumps("😀")) - 2 == escaped
    settings = check(Settings(max_prompt_chars=most))
    assert settings.max_body_bytes >= 2 * 2**20
    assert settings.max_body_bytes >= most * escaped + 2**20


def test_the_protocol_s_own_limit_of_a_body_holds_for_its_own_limit_of_a_prompt() -> None:
    assert Settings().max_prompt_chars == 32_768
    assert Settings().max_body_bytes == Settings(max_prompt_chars=1).max_body_bytes == 2 * 2**20


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


def test_either_size_alone_is_fine() -> None:
    assert check(Settings(parallel=256)).parallel == 256
    assert check(Settings(ctx_size=1)).ctx_size == 1


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
def test_a_file_that_is_no_template_is_reported(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=said) as raised:
        read_chat_template(Settings(chat_template=path))
    assert str(raised.value).startswith(f"--chat-template {path} ")


def test_a_template_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_bytes("{{ 'é' }}\r\n".encode())
    assert read_chat_template(Settings(chat_template=path)) == "{{ 'é' }}\r\n"
    assert read_chat_template(Settings()) is None


def test_a_part_of_a_batch_is_not_larger_than_the_batch() -> None:
    with pytest.raises(UsageError, match="--ubatch-size 512 is more than --batch-size 128"):
        check(Settings(ubatch_size=512, batch_size=128), {"ubatch_size"})
    check(Settings(ubatch_size=128, batch_size=128), {"ubatch_size"})
    check(Settings(batch_size=128))  # nobody asked for the default 512


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:5557", "tcp://10.0.0.5:0", "tcp://[::]:5557"])
def test_prompts_are_shown_to_other_machines_only_if_a_flag_allows_it(endpoint: str) -> None:
    exposed = replace(Settings(), kv_events=endpoint)
    with pytest.raises(UsageError, match="--kv-events-public"):
        check(exposed)
    assert check(replace(exposed, kv_events_public=True)).kv_events == endpoint


def test_what_requires_a_report_is_refused_without_one() -> None:
    with pytest.raises(UsageError, match="--require-parity needs a report"):
        check(Settings(model="m.gguf", require_parity=True))
    check(Settings(model="m.gguf", require_parity=True, parity_report=Path("report.json")))


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--cache-type-k=q8_0", "--cache-type-v=q4_0", "--flash-attn=on", "--threads=3", "--deterministic"],
        ["--device=cuda:1", "--gpu-layers=all", "--require-full-offload", "--ctx-size=4096"],
        ["--split-mode=layer", "--tensor-split=3,1", "--swa-full=off"],
    ],
)
def test_settings_become_flags_that_give_them_again(flags: list[str]) -> None:
    asked = parse(["--model=m.gguf", "--port=0", *flags], {})
    again = parse(["--model=m.gguf", *flags_of(asked, "Device and memory", also=("deterministic",))], {})
    assert replace(again, worker_id="w", port=0) == replace(asked, worker_id="w")
