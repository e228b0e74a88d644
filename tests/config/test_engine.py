"""The engine is asked for what the settings say."""

from dataclasses import fields
from pathlib import Path

import msgspec

from worker.config.engine import configure
from worker.config.settings import Settings
from worker.wire.load import Configure

MEANS_MORE = {"device", "tensor_split", "main_gpu", "prefix_cache_dir", "chat_template"}
"""Settings that are read on their way: lists, files, and what is not given."""


def test_settings_of_the_same_name_are_handed_on_as_they_are() -> None:
    settings = Settings(
        threads=3, parallel=5, ctx_size=4096, swa_full="off", scheduling="first-come", prompt_lookup="off"
    )
    asked = configure(settings, Path("m.gguf"))
    ours = {field.name for field in fields(Settings)} - MEANS_MORE
    shared = [field.name for field in msgspec.structs.fields(Configure) if field.name in ours]
    assert len(shared) > 15
    assert {name: getattr(asked, name) for name in shared} == {name: getattr(settings, name) for name in shared}


def test_paths_are_absolute_because_the_engine_may_have_another_working_directory() -> None:
    asked = configure(Settings(prefix_cache_dir=Path("kept")), Path("m.gguf"), draft_path=Path("d.gguf"))
    assert asked.draft is not None
    paths = (asked.model_path, asked.draft.path, asked.prefix_cache_dir)
    assert [path for path in paths if path is None or not Path(path).is_absolute()] == []


def test_a_draft_model_goes_where_the_model_may_go_unless_a_flag_says_otherwise() -> None:
    found = [
        configure(settings, Path("m.gguf"), draft_path=Path("d.gguf")).draft
        for settings in (
            Settings(device="cuda"),
            Settings(gpu_layers="0"),
            Settings(device="cuda", draft_device="cpu"),
        )
    ]
    assert [draft.device for draft in found if draft is not None] == ["cuda", "cpu", "cpu"]


def test_an_engine_gets_the_chat_template_and_its_variables() -> None:
    told = configure(Settings(chat_template_kwargs='{"a":1}'), Path("m.gguf"), "{{ messages }}")
    assert (told.chat_template, told.chat_template_kwargs) == ("{{ messages }}", '{"a":1}')
    assert configure(Settings(), Path("m.gguf")).chat_template is None
