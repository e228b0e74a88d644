"""Each wrong request is refused by its reader with the field's name, and with nothing of the prompt."""

from dataclasses import replace

import pytest

from tests.openai.asking import TERMS
from tests.openai.wrong import CHAT, COMPLETIONS, DETOKENIZE, N_VOCAB, OF_THE_READERS, SECRET, TOKENIZE, Wrong, name_of
from worker.openai.chat import read_chat
from worker.openai.completions import read_completion
from worker.openai.errors import NotAnObject, error_detail
from worker.openai.tokens import read_detokenize, read_tokenize
from worker.protocol.bodies import FieldsRefused

READERS = {CHAT: read_chat, COMPLETIONS: read_completion, TOKENIZE: read_tokenize, DETOKENIZE: read_detokenize}
THE_TOYS = replace(TERMS, vocab_size=N_VOCAB)


@pytest.mark.parametrize("wrong", OF_THE_READERS, ids=name_of)
def test_a_wrong_request_is_refused_with_the_fields_name_and_nothing_of_the_prompt(wrong: Wrong) -> None:
    with pytest.raises((FieldsRefused, NotAnObject)) as raised:
        READERS[wrong.path.removesuffix("/render")](wrong.body, THE_TOYS)
    detail = error_detail(raised.value)
    assert (detail.param, detail.code) == (wrong.param, wrong.code or detail.code)
    assert detail.type == "invalid_request_error"
    assert SECRET not in detail.message
    if isinstance(raised.value, FieldsRefused):
        messages = [error.message for error in raised.value.errors]
        assert len(set(messages)) == len(messages), "each is told once"
