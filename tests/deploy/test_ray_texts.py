"""The texts that Ray Serve's application reads in a request, and the page of metrics that it makes; without Ray."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from deploy.ray.texts import blocks_of, merged

TEXTS = st.text(alphabet="ab \u00fc", max_size=400)


def blocks(**fields: Any) -> tuple[bytes, ...]:
    return blocks_of(json.dumps(fields).encode())


def n_common(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))


@given(TEXTS, TEXTS, TEXTS)
def test_prompts_have_the_blocks_in_common_that_both_begin_with(same: str, one: str, other: str) -> None:
    ours, theirs = blocks(prompt=f"{same}A{one}"), blocks(prompt=f"{same}B{other}")
    # The prompt stands in the text as JSON, whose first character is a quotation mark.
    n_same = len(json.dumps(same)) - 1
    assert n_common(ours, theirs) == min(n_same // 128, len(ours), len(theirs))


@given(st.lists(TEXTS, min_size=1, max_size=6), TEXTS)
def test_the_next_turn_of_a_conversation_begins_with_all_blocks_of_the_one_before(said: list[str], more: str) -> None:
    messages = [{"role": "user", "content": text} for text in said]
    before = blocks(messages=messages)
    after = blocks(messages=[*messages, {"role": "assistant", "content": more}])
    assert after[: len(before)] == before


def test_other_tools_are_another_beginning() -> None:
    messages = [{"role": "user", "content": "x" * 500}]
    assert n_common(blocks(messages=messages, tools=[{"type": "a"}]), blocks(messages=messages)) == 0


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b"{}", b'{"messages": 1}', b'{"prompt": null}', b"[" * 100_000]
)
def test_what_has_no_prompt_has_no_blocks(body: bytes) -> None:
    assert blocks_of(body) == ()


def page(worker: str) -> str:
    return f"""# HELP jobs_total Jobs.
# TYPE jobs_total counter
jobs_total{{outcome="good",worker_id="{worker}"}} 1.0
jobs_total{{outcome="bad",worker_id="{worker}"}} 0.0
# HELP vllm:running Jobs.
# TYPE vllm:running gauge
vllm:running{{engine="0"}} 1.0
# HELP up Bare.
# TYPE up gauge
up 1.0
"""


def test_metrics_of_all_workers_are_one_page_in_which_every_sample_names_its_worker() -> None:
    families = list(text_string_to_metric_families(merged([page("a"), page("b")])))
    assert [(family.name, len(family.samples)) for family in families] == [("jobs", 4), ("vllm:running", 2), ("up", 2)]
    samples = [sample for family in families for sample in family.samples]
    assert sorted(sample.labels["worker_id"] for sample in samples) == ["a"] * 4 + ["b"] * 4
    assert {sample.labels["engine"] for sample in samples if sample.name == "vllm:running"} == {"0"}
