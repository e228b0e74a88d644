"""The answer of each request alone: computed once by a worker that keeps nothing, and stored by the request's digest.

A digest counts for one model, one processor and one build; the folder of the store is theirs.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from client.child import Child
from tools.bench.exchange import Address, connect
from tools.fire.answers import Answer, answer_of
from tools.fire.asks import Ask
from tools.fire.models import Name
from tools.fire.player import alone_flags
from tools.fire.trace import Trace

_SILENCE_S = 120.0


class Store:
    """Answers by the model and the request. Close it."""

    def __init__(self, path: Path) -> None:
        self._base = sqlite3.connect(path)
        self._base.execute(
            "CREATE TABLE IF NOT EXISTS alone (model TEXT, digest TEXT, answer BLOB, PRIMARY KEY (model, digest))"
        )

    def close(self) -> None:
        self._base.close()

    def get(self, model: Name, digest: str) -> Answer | None:
        key = (model, digest)
        row = self._base.execute("SELECT answer FROM alone WHERE model = ? AND digest = ?", key).fetchone()
        return msgspec.json.decode(row[0], type=Answer) if row else None

    def put(self, model: Name, answers: dict[str, Answer]) -> None:
        rows = [(model, digest, msgspec.json.encode(answer)) for digest, answer in answers.items()]
        with self._base:
            self._base.executemany("INSERT OR REPLACE INTO alone VALUES (?, ?, ?)", rows)


def alone(store: Store, models: Path, trace: Trace) -> dict[str, Answer]:
    """The answers by digest, of which those that are not in the store are asked for. Raises: NotServed."""
    answers: dict[str, Answer] = {}
    missing: dict[str, Ask] = {}
    for ask in trace.used:
        found = store.get(trace.model, ask.digest)
        if found is None:
            missing[ask.digest] = ask
        else:
            answers[ask.digest] = found
    if missing:
        fresh = ask_alone(models, trace, [*missing.values()])
        store.put(trace.model, fresh)
        answers |= fresh
    return answers


def ask_alone(models: Path, trace: Trace, asks: list[Ask]) -> dict[str, Answer]:
    """Ask a fresh worker for the trace's model, one request after another. Raises: NotServed."""
    with Child(*alone_flags(models, trace.model), has_own_session=True) as child:
        child.ready()
        return asyncio.run(_ask_each(Address.of(child.url), asks))


async def _ask_each(address: Address, asks: list[Ask]) -> dict[str, Answer]:
    with closing(await connect(address, _SILENCE_S)) as connection:
        answers = {}
        for number, ask in enumerate(asks):
            exchange = await connection.ask("POST", ask.path, ask.encoded(f"alone-{number}"))
            assert not exchange.broken, (exchange.broken, ask)
            answers[ask.digest] = answer_of(ask, exchange.status, exchange.body)
        return answers
