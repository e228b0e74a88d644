"""Settings that go together, those that do not, and those that change nothing: each is named, with the way out."""

from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from tests.config.given import parse
from tests.record.rows import read
from tests.server.front.rehearsal import FACTS
from worker.config.combinations import idle_after_load, idle_before_load
from worker.config.settings import Settings
from worker.errors import UsageError
from worker.wire.load import Loaded, ModelFacts

LOADED = msgspec.structs.replace(
    FACTS,
    parallel=2,
    context_length=512,
    n_cells=1024,
    batch_size=2048,
    prefix_cache_bytes=1,
    model=ModelFacts(chat_template="{{ messages }}"),
)
TYPES = get_type_hints(Loaded)
COMBINATIONS = read(Path(__file__).with_name("combinations.jsonl"))
IDLE = read(Path(__file__).with_name("idle.jsonl"))


def given(*argv: str) -> Settings:
    return parse(["--model=m.gguf", *argv], {})


@pytest.mark.parametrize("case", COMBINATIONS, ids=lambda case: case["argv"])
def test_wishes_that_cannot_all_hold_are_refused_in_one_line_with_a_way_out_and_others_pass(
    case: dict[str, str],
) -> None:
    argv, said = case["argv"].split(), case.get("said")
    if said is None:
        given(*argv)
        return
    with pytest.raises(UsageError) as caught:
        given(*argv)
    message = str(caught.value)
    assert message.startswith(said)
    assert "\n" not in message
    assert message.endswith("remove one of the two") == ("conflicts with" in said)
    for one in argv if len(argv) > 1 else ():
        given(one)  # what the message advises is enough


@pytest.mark.parametrize("case", IDLE, ids=lambda case: case["argv"])
def test_what_changes_nothing_is_reported_with_the_reason(case: dict[str, Any]) -> None:
    """Before the load by the settings alone, after it by the model and the machine."""
    settings = given(*case["argv"].split())
    if "loaded" in case:
        found = {name: msgspec.convert(value, TYPES[name]) for name, value in case["loaded"].items()}
        idle = [*idle_after_load(settings, msgspec.structs.replace(LOADED, **found))]
    else:
        idle = [*idle_before_load(settings)]
    assert [setting for setting, _ in idle] == case["idle"]
    assert all(reason for _, reason in idle)


@pytest.mark.parametrize(("text", "numbers"), [(None, ()), ("1", (1.0,)), ("3,1", (3.0, 1.0)), ("0.25,2", (0.25, 2.0))])
def test_shares_are_numbers(text: str | None, numbers: tuple[float, ...]) -> None:
    assert Settings(tensor_split=text).shares == numbers
