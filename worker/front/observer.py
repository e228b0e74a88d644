"""The events of engines, which the engine client reports to the rest of the front."""

from worker.errors import StartupError
from worker.wire.blocks import BlocksChanged
from worker.wire.jobs import StepDone
from worker.wire.load import Loaded, PrefixCacheFound, Residency, Warned


class Observer:
    """The events of the client's engines. An observer overrides the ones that it needs."""

    def on_progress(self, percent: int) -> None:
        """This percentage of the model is loaded."""

    def on_step(self, step: StepDone) -> None:
        """The engine has done a step; the jobs have its results already."""

    def on_blocks_changed(self, message: BlocksChanged) -> None:
        """The cached blocks have changed."""

    def on_residency(self, residency: Residency) -> None:
        """The engine has checked where its model is."""

    def on_prefix_cache_found(self, found: PrefixCacheFound) -> None:
        """The engine has looked for saved cells of earlier engines."""

    def on_warned(self, warned: Warned) -> None:
        """Something has failed in the engine that ends no job."""

    def on_engine_line(self, line: str) -> None:
        """The engine has written a line to its stderr."""

    def on_restarting(self, cause: str, last_words: str) -> None:
        """The engine has died, and a successor is being started."""

    def on_restarted(self, facts: Loaded) -> None:
        """The successor is ready. `EngineClient.on_fatal` refuses it."""

    def on_fatal(self, error: StartupError) -> None:
        """There will be no further engine. This is called before the jobs in flight are ended."""
