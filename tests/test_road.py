"""The road of a request: the modules whose functions run while it is answered, and a budget of their lines.

A reader of the road opens these files. A file that a request needs joins the list; a file that grows past the budget is
split, or loses the part that no request runs.
"""

import pytest

from tests.imports import Source, arrows, reachable, sources

ROADS: dict[str, dict[str, int]] = {
    "/execute": {
        "worker.engine.channels": 328,
        "worker.engine.drafting.acceptance": 93,
        "worker.engine.drafting.drafts": 224,
        "worker.engine.drafting.history": 127,
        "worker.engine.drafting.ngram": 95,
        "worker.engine.drafting.speculation": 300,
        "worker.engine.drafting.step_costs": 56,
        "worker.engine.loop": 597,
        "worker.engine.prefill_budget": 239,
        "worker.engine.prefix_cache": 414,
        "worker.engine.prefix_tree": 299,
        "worker.engine.salt": 39,
        "worker.engine.scheduler": 274,
        "worker.engine.sequence": 259,
        "worker.engine.shares": 133,
        "worker.engine.step": 142,
        "worker.engine.text": 127,
        "worker.front.admission": 234,
        "worker.front.client": 294,
        "worker.front.deaths": 30,
        "worker.front.dispatch": 243,
        "worker.front.job": 418,
        "worker.front.job_log": 134,
        "worker.front.link": 167,
        "worker.front.supervision": 80,
        "worker.front.watchdog": 86,
        "worker.llama.batch": 260,
        "worker.llama.context": 286,
        "worker.llama.draws": 222,
        "worker.llama.kv": 508,
        "worker.llama.prompts": 85,
        "worker.llama.runner": 82,
        "worker.llama.seq_ids": 89,
        "worker.llama.threads": 211,
        "worker.llama.tokenizer": 213,
        "worker.model.spelling": 116,
        "worker.observe.counters": 168,
        "worker.observe.log_lines": 290,
        "worker.observe.log_writer": 157,
        "worker.observe.redaction": 73,
        "worker.observe.vllm_metrics": 130,
        "worker.process.intake": 225,
        "worker.process.outbox": 87,
        "worker.process.steps": 105,
        "worker.protocol.constraints": 89,
        "worker.protocol.events": 266,
        "worker.protocol.execute": 307,
        "worker.protocol.headers": 78,
        "worker.protocol.job_request": 87,
        "worker.protocol.json_bytes": 37,
        "worker.protocol.rules": 240,
        "worker.sampling.estimate": 53,
        "worker.sampling.penalties": 96,
        "worker.sampling.row": 116,
        "worker.sampling.sample": 176,
        "worker.sampling.shortlist": 249,
        "worker.sampling.unsorted": 180,
        "worker.web.bodies": 67,
        "worker.web.connection": 436,
        "worker.web.cors": 58,
        "worker.web.crowd": 142,
        "worker.web.edge": 324,
        "worker.web.execute": 60,
        "worker.web.request_parser": 110,
        "worker.web.site": 81,
        "worker.web.streaming": 188,
        "worker.wire.encoding": 25,
        "worker.wire.frames": 50,
        "worker.wire.jobs": 284,
    },
    "/v1/chat/completions": {
        "worker.chat.calls": 498,
        "worker.chat.deltas": 179,
        "worker.chat.forms": 407,
        "worker.chat.marks": 142,
        "worker.chat.parse": 328,
        "worker.chat.sandbox": 221,
        "worker.chat.scan": 220,
        "worker.chat.template": 280,
        "worker.chat.witnesses": 158,
        "worker.config.typed_name": 15,
        "worker.openai.answers": 283,
        "worker.openai.chat": 234,
        "worker.openai.chat_message": 322,
        "worker.openai.chat_tools": 164,
        "worker.openai.constraints": 226,
        "worker.openai.errors": 171,
        "worker.openai.fields": 402,
        "worker.openai.listed": 110,
        "worker.openai.models": 61,
        "worker.openai.reading": 151,
        "worker.openai.thinking": 64,
        "worker.openai.tools": 301,
        "worker.protocol.conversation": 324,
        "worker.protocol.unread": 45,
        "worker.web.openai": 297,
        "worker.wire.load": 336,
        "worker.wire.names": 27,
    },
}
"""The modules that a request runs, as a trace of both processes has shown, and their lines on the day of the
list. A chat needs the modules of /execute, too."""

MAX_LINES = {"/execute": 12600, "/v1/chat/completions": 6200}
"""The budget of each list: two percent above its lines on the day of the list."""

BESIDE = frozenset(
    {
        "worker",
        "worker.anthropic.request",
        "worker.chat.dress",
        "worker.chat.literals",
        "worker.chat.messages",
        "worker.chat.probes",
        "worker.chat.tagged",
        "worker.chat.tool_words",
        "worker.chat.values",
        "worker.config.engine",
        "worker.config.option",
        "worker.config.settings",
        "worker.constraints.jobs",
        "worker.engine.backend",
        "worker.engine.config",
        "worker.engine.drafting.asking",
        "worker.engine.drafting.draft_model",
        "worker.engine.drafting.even_steps",
        "worker.engine.drafting.heads",
        "worker.engine.drafting.predicted",
        "worker.engine.kv_blocks",
        "worker.engine.spoken",
        "worker.engine.state_cache",
        "worker.errors",
        "worker.front.aftermath",
        "worker.front.health",
        "worker.front.observer",
        "worker.front.questions",
        "worker.front.state",
        "worker.limits",
        "worker.llama.held_width",
        "worker.llama.library",
        "worker.llama.model",
        "worker.llama.state_kv",
        "worker.observe.buckets",
        "worker.observe.metrics",
        "worker.observe.stderr_tail",
        "worker.observe.traces",
        "worker.openai.completions",
        "worker.openai.infill",
        "worker.openai.responses.request",
        "worker.openai.tokens",
        "worker.plan.buffers",
        "worker.plan.memory",
        "worker.process.returns",
        "worker.protocol.bodies",
        "worker.protocol.payloads",
        "worker.sampling.arrays",
        "worker.sampling.logprobs",
        "worker.sampling.sorted",
        "worker.saved.arena",
        "worker.saved.copies",
        "worker.saved.keeper",
        "worker.upstream.architectures",
        "worker.upstream.numbers",
        "worker.web.browsed",
        "worker.web.chat_page",
        "worker.web.large_bodies",
        "worker.web.refusals",
        "worker.wire.blocks",
        "worker.wire.chat_format",
        "worker.wire.harmony",
        "worker.wire.messages",
        "worker.wire.numerics",
        "worker.wire.prompts",
        "worker.wire.questions",
        "worker.wire.refusals",
        "worker.wire.tools",
    }
)
"""Modules that the road imports for a type, an error, a constant, or work at the start, at the end or while idle."""


def lines_of(name: str) -> int:
    return MODULES[name].text.count("\n")


MODULES: dict[str, Source] = {module.name: module for module in sources()}


@pytest.mark.parametrize("road", ROADS)
def test_every_module_of_a_road_runs_in_the_front_or_in_the_engine(road: str) -> None:
    reached = reachable("worker.serve") | reachable("worker.process.main")
    assert [name for name in ROADS[road] if name not in reached] == []


@pytest.mark.parametrize("road", ROADS)
def test_a_road_stays_as_short_as_it_is(road: str) -> None:
    """If it has grown, the message says where: each module with its lines, and those of the day of the list."""
    n_lines = sum(map(lines_of, ROADS[road]))
    grown = {name: (now, before) for name, before in ROADS[road].items() if (now := lines_of(name)) > before}
    assert n_lines <= MAX_LINES[road], f"the road of {road} has {n_lines} lines; these modules grew: {grown}"


def test_a_module_that_the_road_imports_is_on_it_or_known_to_lie_next_to_it() -> None:
    """A new module on the way of a request is added to the road; one that it only names, to BESIDE."""
    roads = {name for road in ROADS.values() for name in road}
    graph = arrows()
    imported = {target for name in roads for target in graph[name] if target in MODULES}
    unknown = sorted(imported - roads - BESIDE)
    assert unknown == [], "add each to the road that runs it, or to BESIDE"
    assert sorted(BESIDE - imported) == [], "the road does not import these any more"
