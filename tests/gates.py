"""The gates of tests/crashing_engine.py: files that the test makes, and the engine waits until they are gone."""

import time
from pathlib import Path


class Gates:
    """`load` is after 0 % of loading; `decode` is for STALL, `crash` for CRASHES."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def shut(self, *names: str) -> None:
        for name in names:
            (self._directory / name).touch()

    def open(self, *names: str) -> None:
        for name in names:
            (self._directory / name).unlink(missing_ok=True)

    def wait(self, name: str) -> None:
        while self.is_shut(name):
            time.sleep(0.005)

    def is_shut(self, name: str) -> bool:
        return (self._directory / name).exists()
