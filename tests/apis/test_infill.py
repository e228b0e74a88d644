"""A request in llama-server's shape becomes a text with a gap, and a job becomes the text in it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.apis.asking import HEADING, body, finish, start
from tests.apis.asking import TERMS as NO_GAPS
from tests.tables import cases
from worker.apis.completions.request import read_completion
from worker.apis.core.answers import whole
from worker.apis.core.bodies import FieldsRefused
from worker.apis.core.errors import error_detail
from worker.apis.core.events import Piece
from worker.apis.core.request import Request
from worker.apis.infill.request import read_infill
from worker.wire.prompts import Infill

TERMS = replace(NO_GAPS, can_infill=True)
GAP = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n"}


def asked(**fields: Any) -> Request:
    return read_infill(body(GAP | fields), TERMS)


def refused(**fields: Any) -> str | None:
    with pytest.raises(FieldsRefused) as raised:
        asked(**fields)
    return error_detail(raised.value).param


def test_the_texts_around_the_gap_are_read() -> None:
    extra = [{"filename": "one.py", "text": "import os"}, {"text": "x = 1"}]
    found = asked(prompt="a +", input_extra=extra).prompts[0]
    assert found == Infill(
        prefix=GAP["input_prefix"], suffix="\n", begun="a +", files=(("one.py", "import os"), ("tmp", "x = 1"))
    )
    (plain,) = asked().prompts
    assert isinstance(plain, Infill)
    assert plain.files == ()


def test_llama_servers_names_and_values_are_understood() -> None:
    found = asked(n_predict=7, repeat_penalty=1.5, seed=-1, top_k=4, stop=["x"], cache_prompt=True)
    assert (found.params.max_tokens, found.params.repetition_penalty, found.params.top_k) == (7, 1.5, 4)
    assert (found.params.seed, found.params.stop) == (None, ("x",))
    assert asked(n_predict=-1).params.max_tokens == TERMS.max_tokens_out
    assert asked(n_predict=0).params.max_tokens == 0


def test_what_editors_send_without_effect_is_named() -> None:
    sent = {"id_slot": 0, "samplers": ["top_k", "infill"], "t_max_predict_ms": 500, "cache_prompt": False}
    assert set(asked(**sent).ignored) == set(sent)


@cases
def test_a_wrong_field_is_refused_by_the_clients_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields) == param


def test_a_model_without_the_tokens_refuses() -> None:
    with pytest.raises(FieldsRefused, match="no fill-in-the-middle tokens"):
        read_infill(body(GAP), NO_GAPS)
    with pytest.raises(FieldsRefused, match="needs a model with fill-in-the-middle tokens"):
        read_completion(body({"prompt": "a", "suffix": "b"}), NO_GAPS)


def test_an_answer_has_llama_servers_members() -> None:
    found = asked(n_predict=9)
    (choice,) = found.answers(HEADING)
    start(choice)
    assert choice.token(Piece("a ")) + choice.token(Piece("+ b", 1)) == b""
    finish(choice, "EOS", 3)
    status, sent = whole(HEADING, [choice], 1)
    answer = json.loads(sent)
    assert (status, answer["content"], answer["stop"], answer["stop_type"]) == (200, "a + b", True, "eos")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"], answer["tokens_cached"]) == (3, 5, 2)
    assert (answer["timings"]["prompt_n"], answer["timings"]["predicted_n"]) == (3, 3)
    assert (answer["generation_settings"]["n_ctx"], answer["generation_settings"]["n_predict"]) == (2048, 9)


def test_only_the_members_that_were_asked_for_are_sent() -> None:
    found = asked(response_fields=["content", "timings/predicted_n", "timings/none", "none"])
    (choice,) = found.answers(HEADING)
    start(choice)
    choice.token(Piece("a"))
    finish(choice, "EOS", 1)
    assert json.loads(whole(HEADING, [choice], 1)[1]) == {"content": "a", "timings/predicted_n": 1}


def test_a_completion_with_a_suffix_is_a_gap() -> None:
    found = read_completion(body({"prompt": ["a", "b"], "suffix": "c"}), TERMS)
    assert found.prompts == (Infill(prefix="a", suffix="c"), Infill(prefix="b", suffix="c"))
    whole_text = read_completion(body({"prompt": "a", "suffix": ""}), NO_GAPS)
    assert whole_text.prompts == ("a",)


@pytest.mark.parametrize(
    "fields",
    [{"prompt": [1, 2]}, {"prompt": [[1], [2]]}, {"echo": True}, {"prompt_logprobs": 1}, {"suffix": "x" * 1001}],
)
def test_what_cannot_go_with_a_suffix_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(FieldsRefused) as raised:
        read_completion(body({"prompt": "a", "suffix": "b"} | fields), TERMS)
    assert error_detail(raised.value).param == "suffix"
