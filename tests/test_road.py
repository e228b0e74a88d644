"""The road of a request: the modules whose functions run while it is answered.

A reader of the road opens these files. A file that a request needs joins the list.
"""

import pytest

from tests.imports import Source, arrows, reachable, sources

ROADS: dict[str, tuple[str, ...]] = {
    "/execute": (
        "worker.engine.channels",
        "worker.engine.drafting.acceptance",
        "worker.engine.drafting.drafts",
        "worker.engine.drafting.history",
        "worker.engine.drafting.ngram",
        "worker.engine.drafting.speculation",
        "worker.engine.drafting.step_costs",
        "worker.engine.loop",
        "worker.engine.prefill_budget",
        "worker.engine.prefix_cache",
        "worker.engine.prefix_tree",
        "worker.engine.reports",
        "worker.engine.salt",
        "worker.engine.scheduler",
        "worker.engine.sequence",
        "worker.engine.shares",
        "worker.engine.step",
        "worker.engine.text",
        "worker.front.admission",
        "worker.front.client",
        "worker.front.dispatch",
        "worker.front.job",
        "worker.front.job_log",
        "worker.front.link",
        "worker.front.supervision",
        "worker.front.watchdog",
        "worker.llama.batch",
        "worker.llama.context",
        "worker.llama.draws",
        "worker.llama.kv",
        "worker.llama.prompts",
        "worker.llama.runner",
        "worker.llama.seq_ids",
        "worker.llama.threads",
        "worker.llama.tokenizer",
        "worker.model.spelling",
        "worker.observe.counters",
        "worker.observe.log_lines",
        "worker.observe.log_writer",
        "worker.observe.redaction",
        "worker.observe.vllm_metrics",
        "worker.process.intake",
        "worker.process.outbox",
        "worker.process.steps",
        "worker.protocol.constraints",
        "worker.protocol.events",
        "worker.protocol.execute",
        "worker.protocol.headers",
        "worker.protocol.job_request",
        "worker.protocol.json_bytes",
        "worker.protocol.rules",
        "worker.sampling.estimate",
        "worker.sampling.row",
        "worker.sampling.sample",
        "worker.sampling.shortlist",
        "worker.sampling.unsorted",
        "worker.web.bodies",
        "worker.web.connection",
        "worker.web.connection_limits",
        "worker.web.middleware",
        "worker.web.execute",
        "worker.web.request_parser",
        "worker.web.site",
        "worker.web.streaming",
        "worker.wire.encoding",
        "worker.wire.frames",
        "worker.wire.jobs",
    ),
    "/v1/chat/completions": (
        "worker.chat.calls",
        "worker.chat.deltas",
        "worker.chat.forms",
        "worker.chat.escapes",
        "worker.chat.parse",
        "worker.chat.sandbox",
        "worker.chat.scan",
        "worker.chat.template",
        "worker.chat.tracers",
        "worker.openai.answers",
        "worker.openai.chat",
        "worker.openai.chat_message",
        "worker.openai.constraints",
        "worker.openai.errors",
        "worker.openai.fields",
        "worker.openai.listed",
        "worker.openai.models",
        "worker.openai.reading",
        "worker.openai.thinking",
        "worker.openai.tools",
        "worker.protocol.conversation",
        "worker.protocol.unread",
        "worker.web.api",
        "worker.wire.load",
        "worker.wire.names",
    ),
}
"""The modules that a request runs, as a trace of both processes has shown. A chat needs the modules of /execute, too.
test_budgets.py limits their lines."""

BESIDE = frozenset(
    {
        "worker",
        "worker.anthropic.request",
        "worker.chat.plain_calls",
        "worker.chat.literals",
        "worker.chat.messages",
        "worker.chat.probes",
        "worker.chat.tagged",
        "worker.chat.values",
        "worker.config.engine",
        "worker.config.engine_settings",
        "worker.config.option",
        "worker.config.settings",
        "worker.constraints.jobs",
        "worker.engine.backend",
        "worker.engine.config",
        "worker.engine.drafting.draft_model",
        "worker.engine.drafting.predicted",
        "worker.engine.kv_blocks",
        "worker.engine.spoken",
        "worker.engine.state_cache",
        "worker.errors",
        "worker.front.health",
        "worker.front.state",
        "worker.front.work",
        "worker.limits",
        "worker.llama.held_width",
        "worker.llama.library",
        "worker.llama.model",
        "worker.llama.state_kv",
        "worker.observe.metrics",
        "worker.observe.traces",
        "worker.openai.completions",
        "worker.openai.infill",
        "worker.openai.responses.request",
        "worker.openai.tokens",
        "worker.plan.buffers",
        "worker.plan.memory",
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
        "worker.web.pages",
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


def test_a_module_that_the_road_imports_is_on_it_or_known_to_lie_next_to_it() -> None:
    """A new module on the way of a request is added to the road; one that it only names, to BESIDE."""
    roads = {name for road in ROADS.values() for name in road}
    graph = arrows()
    imported = {target for name in roads for target in graph[name] if target in MODULES}
    unknown = sorted(imported - roads - BESIDE)
    assert unknown == [], "add each to the road that runs it, or to BESIDE"
    assert sorted(BESIDE - imported) == [], "the road does not import these any more"
