"""A real worker in which a test has changed something: `python -m tests.altered_worker CHANGES --model …`.

The options of serve follow CHANGES, which is JSON, which `altered` of tests/worker_process.py writes and explains.
"""

import importlib
import json
import sys
from collections.abc import Callable

from tests.config.given import settings_of
from worker import serve
from worker.server.front.client import ENGINE_COMMAND, EngineClient
from worker.server.front.state import Front
from worker.server.web import server
from worker.server.web.middleware import Site


def _fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError("on purpose")


async def _stop_serving(*_: object) -> bool:
    return True


async def _announce(*_: object, **__: object) -> None:
    _fail()


FAILURES: dict[str, Callable[[EngineClient], None]] = {
    "the web server": lambda _: setattr(server._Server, "on_tick", _stop_serving),
    "the engine's watchdog": lambda client: setattr(client._watchdog, "_clock", _fail),
    "the watch over the engine process": lambda _: setattr(EngineClient, "on_exit", _fail),
    "the ready callback": lambda _: setattr(serve, "announce", _announce),
}
"""Each part of the front with what makes it fail when all parts are at work."""


def _fail_once_open(part: str) -> None:
    opened = Front.open

    def open_and_fail(self: Front, client: EngineClient) -> None:
        opened(self, client)
        FAILURES[part](client)

    Front.open = open_and_fail  # type: ignore[method-assign] # the moment at which all parts are at work


def main() -> None:
    changes = json.loads(sys.argv[1])
    for name, value in changes["constants"].items():
        module, _, constant = f"worker.{name}".rpartition(".")
        assert hasattr(importlib.import_module(module), constant), name
        setattr(sys.modules[module], constant, value)
    if changes["is_open"]:
        Site.refusal = lambda *_: None  # type: ignore[method-assign] # as before the worker judged pages and hosts
    if changes["failing"]:
        _fail_once_open(changes["failing"])
    engine_command = (sys.executable, "-m", *changes["engine"]) if changes["engine"] else ENGINE_COMMAND
    raise SystemExit(serve.run(settings_of(sys.argv[2:]), engine_command=engine_command))


if __name__ == "__main__":
    main()
