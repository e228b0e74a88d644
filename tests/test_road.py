"""The road of a request: the modules whose functions run while it is answered.

A reader of the road opens these files. A file that a request needs joins the list.
"""

import pytest

from tests.imports import Source, arrows, reachable, sources

ROADS: dict[str, tuple[str, ...]] = {
    "/execute": (
        "worker.engine.channels",
        "worker.engine.drafting.drafts",
        "worker.engine.drafting.lookups",
        "worker.engine.drafting.pricing",
        "worker.engine.loop",
        "worker.engine.prefill_budget",
        "worker.engine.prefix_cache",
        "worker.engine.prefix_tree",
        "worker.engine.reports",
        "worker.engine.scheduler",
        "worker.engine.sequence",
        "worker.engine.step",
        "worker.server.front.admission",
        "worker.server.front.dispatch",
        "worker.server.front.job",
        "worker.server.front.link",
        "worker.server.front.supervision",
        "worker.llama.batch",
        "worker.llama.context",
        "worker.llama.kv",
        "worker.llama.runner",
        "worker.llama.seq_ids",
        "worker.llama.threads",
        "worker.llama.tokenizer",
        "worker.models.facts.spelling",
        "worker.observe.log_lines",
        "worker.observe.log_writer",
        "worker.observe.metrics",
        "worker.observe.redaction",
        "worker.server.process.intake",
        "worker.server.process.outbox",
        "worker.apis.core.rules",
        "worker.apis.core.events",
        "worker.apis.pool.execute",
        "worker.apis.core.received",
        "worker.apis.core.request",
        "worker.engine.sampling.row",
        "worker.engine.sampling.sample",
        "worker.engine.sampling.shortlist",
        "worker.server.web.bodies",
        "worker.server.web.connection",
        "worker.server.web.connection_limits",
        "worker.server.web.middleware",
        "worker.server.web.streaming",
        "worker.wire.encoding",
        "worker.wire.jobs",
    ),
    "/v1/chat/completions": (
        "worker.formats.read.calls",
        "worker.formats.read.deltas",
        "worker.formats.render.forms",
        "worker.formats.render.escapes",
        "worker.formats.read.parse",
        "worker.formats.render.sandbox",
        "worker.formats.read.scan",
        "worker.formats.render.template",
        "worker.formats.render.tracers",
        "worker.apis.core.answers",
        "worker.apis.chat.request",
        "worker.apis.chat.message",
        "worker.apis.core.constraint_fields",
        "worker.apis.core.errors",
        "worker.apis.core.fields",
        "worker.apis.core.reading",
        "worker.apis.core.thinking",
        "worker.apis.core.tools",
        "worker.apis.core.conversation",
        "worker.server.web.api",
        "worker.wire.load",
        "worker.wire.names",
    ),
}
"""The modules that a request runs, as a trace of both processes has shown. A chat needs the modules of /execute, too.
test_budgets.py limits their lines."""

BESIDE = frozenset(
    {
        "worker.apis.messages.answer",
        "worker.apis.responses.resource",
        "worker.constraints.answer",
        "worker",
        "worker.apis.messages.request",
        "worker.formats.read.plain_calls",
        "worker.formats.read.literals",
        "worker.formats.read.messages",
        "worker.formats.render.probes",
        "worker.formats.read.tagged",
        "worker.formats.read.values",
        "worker.config.engine_settings",
        "worker.config.option",
        "worker.config.settings",
        "worker.engine.backend",
        "worker.engine.config",
        "worker.engine.drafting.draft_model",
        "worker.engine.kv_blocks",
        "worker.engine.caches",
        "worker.engine.drafting.even",
        "worker.errors",
        "worker.server.front.children",
        "worker.server.front.client",
        "worker.server.front.state",
        "worker.limits",
        "worker.llama.held_width",
        "worker.llama.library",
        "worker.llama.model",
        "worker.llama.state_kv",
        "worker.llama.token_table",
        "worker.observe.series",
        "worker.observe.traces",
        "worker.apis.completions.request",
        "worker.apis.infill.request",
        "worker.apis.responses.items",
        "worker.apis.responses.request",
        "worker.apis.infill.tokens",
        "worker.models.plan.buffers",
        "worker.models.plan.memory",
        "worker.apis.core.bodies",
        "worker.apis.core.payloads",
        "worker.server.saved.arena",
        "worker.server.saved.copies",
        "worker.server.saved.keeper",
        "worker.models.upstream.architectures",
        "worker.models.upstream.numbers",
        "worker.server.web.pages",
        "worker.server.web.large_bodies",
        "worker.server.web.refusals",
        "worker.wire.messages",
        "worker.wire.chat_format",
        "worker.wire.harmony",
        "worker.wire.prompts",
    }
)
"""Modules that the road imports for a type, an error, a constant, or work at the start, at the end or while idle."""


def lines_of(name: str) -> int:
    return MODULES[name].text.count("\n")


MODULES: dict[str, Source] = {module.name: module for module in sources()}


@pytest.mark.parametrize("road", ROADS)
def test_every_module_of_a_road_runs_in_the_front_or_in_the_engine(road: str) -> None:
    reached = reachable("worker.serve") | reachable("worker.server.process.main")
    assert [name for name in ROADS[road] if name not in reached] == []


def test_a_module_that_the_road_imports_is_on_it_or_known_to_lie_next_to_it() -> None:
    """A new module on the way of a request is added to the road; one that it only names, to BESIDE."""
    roads = {name for road in ROADS.values() for name in road}
    graph = arrows()
    imported = {target for name in roads for target in graph[name] if target in MODULES}
    unknown = sorted(imported - roads - BESIDE)
    assert unknown == [], "add each to the road that runs it, or to BESIDE"
    assert sorted(BESIDE - imported) == [], "the road does not import these any more"
