"""Each dialect sends the same request, and a stream reads the same however it is cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.bench.stand_in import DIALECTS
from tools.bench.answers import Ask
from tools.bench.dialects import Chat, Dialect, LlamaServer, Ours, answer_of, sse
from tools.bench.exchange import Exchange
from worker.protocol.execute import ExecuteRequest, parse_execute
from worker.protocol.rules import violations

GREEDY = Ask(prompt="one two", n_tokens=7)
SAMPLED = Ask(prompt="one two", n_tokens=7, temperature=0.8, top_p=0.95, seed=11)

OURS_STREAM = (
    b'data: {"type":"started","job_id":"1","seed":1,"prompt_tokens":5,"cached_tokens":2}\n\n'
    b'data: {"type":"token","t":" {caf\xc3\xa9}","i":0}\n\n'
    b'data: {"type":"metrics","tokens_per_sec":3.5}\n\n'
    b'data: {"type":"token","t":"b","i":1}\n\n'
    b'data: {"type":"end","tokens_out":2,"decode_time_ms":3,"stop_reason":"MAX_TOKENS","tokens_sampled":3}\n\n'
)
THEIRS_STREAM = (
    b": ping {}\n\n"
    b'data: {"index":0,"content":" {caf\xc3\xa9}","tokens":[5],"stop":false}\n\n'
    b'data: {"index":0,"content":"","tokens":[6],"stop":false}\n\n'
    b'data: {"index":0,"content":"b","tokens":[7],"stop":false}\n\n'
    b'data: {"index":0,"content":"","stop":true,"tokens_evaluated":5,"timings":{"cache_n":2,"predicted_n":3}}\n\n'
)
CHAT_STREAM = (
    b'data: {"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    b'data: {"id":"1","choices":[{"index":0,"delta":{"content":" {caf\xc3\xa9}"},"finish_reason":null}]}\n\n'
    b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":null}],"usage":null}\n\n'
    b'data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
    b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}\n\n'
)
"""The stream has no [DONE] after it, because no client waits for it."""
STREAMS = [(DIALECTS[0], OURS_STREAM), (DIALECTS[1], THEIRS_STREAM), (Chat(), CHAT_STREAM)]


def exchange(stream: bytes, cuts: list[int] | None = None, status: int = 200) -> Exchange:
    """The stream comes piece by piece, one each second."""
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts or []}), len(stream)]
    pieces = [(float(at_s), stream[start:end]) for at_s, (start, end) in enumerate(pairwise(edges))]
    return Exchange(sent_s=-1.0, status=status, pieces=pieces)


def body(dialect: Dialect, ask: Ask) -> dict[str, object]:
    found: dict[str, object] = json.loads(dialect.body(ask))
    return found


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ask", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_our_worker_finds_nothing_wrong_with_ours(ask: Ask) -> None:
    request = parse_execute(Ours("test").body(ask))
    assert isinstance(request, ExecuteRequest)
    assert violations(request, 2048, vocab_size=None, max_prompt_chars=32_768) == []
    assert (request.max_tokens, request.ignore_eos) == (7, True)
    assert request.seed == ask.seed
    assert request.temperature == pytest.approx(ask.temperature)


def test_no_two_jobs_of_ours_have_one_id() -> None:
    ours = Ours("test")
    assert len({body(ours, GREEDY)["job_id"] for _ in range(20)}) == 20


def test_llama_server_is_asked_for_the_same_tokens_without_its_own_filters_and_greedy_at_its_cheapest() -> None:
    sampled, greedy = body(LlamaServer(), SAMPLED), body(LlamaServer(), GREEDY)
    assert (greedy["temperature"], greedy["top_k"]) == (0.0, 1)
    assert (sampled["temperature"], sampled["top_p"], sampled["top_k"], sampled["min_p"]) == (0.8, 0.95, 0, 0.0)
    assert (sampled["n_predict"], sampled["ignore_eos"], sampled["stream"], sampled["seed"]) == (7, True, True, 11)


# ── what comes back ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("dialect", "stream"), STREAMS)
@given(cuts=st.lists(st.integers(0, 1000), max_size=30))
def test_an_answer_reads_the_same_however_its_bytes_were_cut(dialect: Dialect, stream: bytes, cuts: list[int]) -> None:
    pieces = exchange(stream, cuts)
    answer = answer_of(pieces, dialect)
    assert (answer.error, answer.n_tokens, len(answer.arrivals_s)) == ("", 3, 2)
    assert list(answer.arrivals_s) == sorted(answer.arrivals_s)
    assert [data for _, data in sse(pieces)] == [data for _, data in sse(exchange(stream))]


def test_every_server_says_how_many_tokens_a_prompt_has() -> None:
    assert [answer_of(exchange(stream), dialect).n_prompt for dialect, stream in STREAMS] == [5, 5, 5]


def test_both_servers_of_conversations_say_how_much_of_a_prompt_they_had() -> None:
    assert [answer_of(exchange(stream), dialect).n_cached for dialect, stream in STREAMS[:2]] == [2, 2]


@given(cuts=st.lists(st.integers(0, 1000), max_size=30))
def test_an_event_came_when_its_last_byte_did(cuts: list[int]) -> None:
    pieces = exchange(OURS_STREAM, cuts)
    n_bytes = 0
    whole_at: dict[int, float] = {}
    for at_s, piece in pieces.pieces:
        n_bytes += len(piece)
        whole_at.setdefault(OURS_STREAM[:n_bytes].count(b"\n\n"), at_s)
    for number, (at_s, _) in enumerate(sse(pieces), start=1):
        assert at_s == min(time for n_whole, time in whole_at.items() if n_whole >= number)


@pytest.mark.parametrize(("dialect", "stream"), STREAMS)
def test_a_stream_without_its_last_event_is_no_answer(dialect: Dialect, stream: bytes) -> None:
    answer = answer_of(exchange(stream[: stream.rindex(b"data: ")]), dialect)
    assert answer.error.startswith("cut after 2 tokens: ")
    assert answer.arrivals_s == ()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("status", "is_refused"), [(503, True), (500, False), (400, False)])
def test_a_refusal_is_distinguished_from_other_errors(dialect: Dialect, status: int, is_refused: bool) -> None:
    answer = answer_of(exchange(b'{"code":"X"}', status=status), dialect)
    assert answer.is_refused == is_refused
    assert answer.error == f'{status} {{"code":"X"}}'


@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        (DIALECTS[0], b'data: {"type":"error","code":"TIMEOUT","message":"too slow","retriable":true}\n\n'),
        (DIALECTS[1], b'error: {"error":{"code":500,"message":"too slow","type":"server_error"}}\n\n'),
        (Chat(), b'data: {"error":{"message":"too slow","type":"server_error","param":null,"code":"timeout"}}\n\n'),
    ],
)
def test_an_error_event_is_the_answer_s_error(dialect: Dialect, event: bytes) -> None:
    assert "too slow" in answer_of(exchange(event), dialect).error


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("garbage", [b"data: {broken\n\n", b"data: {}\xff\n\n", b'data: {"type":5,"stop":5}\n\n'])
def test_bytes_that_are_no_event_are_an_error_of_that_answer(dialect: Dialect, garbage: bytes) -> None:
    assert answer_of(exchange(garbage), dialect).error.startswith("no event: ")


@pytest.mark.parametrize(
    ("dialect", "end"),
    [
        (DIALECTS[0], b'data: {"type":"end","stop_reason":"MAX_TOKENS","tokens_sampled":4}\n\n'),
        (DIALECTS[1], b'data: {"content":"","stop":true,"timings":{"predicted_n":4}}\n\n'),
    ],
)
def test_tokens_without_any_text_have_no_times_and_are_no_answer(dialect: Dialect, end: bytes) -> None:
    assert answer_of(exchange(end), dialect).error == "4 tokens, none of them with text"
