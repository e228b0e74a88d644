"""The engine is asked for what the settings say."""

from dataclasses import fields
from pathlib import Path

from worker.config.engine import configure
from worker.config.engine_settings import EngineSettings
from worker.config.settings import Settings


def test_the_settings_of_the_engine_are_handed_on_as_they_are() -> None:
    settings = Settings(threads=3, ctx_size=4096, swa_full="off", tensor_split="3,1", main_gpu=1, device="cuda")
    asked = configure(settings, Path("m.gguf"))
    shared = [each.name for each in fields(EngineSettings)]
    assert {name: getattr(asked, name) for name in shared} == {name: getattr(settings, name) for name in shared}


def test_the_engine_gets_no_secret_and_no_address() -> None:
    asked = configure(Settings(api_key="s3cret", host="10.1.1.1", callback_url="http://pool:1/"), Path("m.gguf"))
    assert [word for word in ("s3cret", "10.1.1.1", "pool:1") if word in repr(asked)] == []


def test_paths_are_absolute_because_the_engine_may_have_another_working_directory() -> None:
    asked = configure(Settings(prefix_cache_dir=Path("kept")), Path("m.gguf"), draft_path=Path("d.gguf"))
    paths = (asked.model_path, asked.draft_path, asked.prefix_cache_dir, asked.models_dir)
    assert [path for path in paths if path is None or not Path(path).is_absolute()] == []


def test_a_draft_model_goes_where_the_model_may_go_unless_a_flag_says_otherwise() -> None:
    told = (Settings(device="cuda"), Settings(gpu_layers="0"), Settings(device="cuda", draft_device="cpu"))
    assert [settings.device_of_draft for settings in told] == ["cuda", "cpu", "cpu"]


def test_an_engine_gets_the_chat_template_and_its_variables() -> None:
    told = configure(Settings(chat_template_kwargs='{"a":1}'), Path("m.gguf"), "{{ messages }}")
    assert (told.template, told.chat_template_kwargs) == ("{{ messages }}", '{"a":1}')
    assert configure(Settings(), Path("m.gguf")).template is None
