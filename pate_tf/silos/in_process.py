"""The engine for simulations: silos and coordinator in one process, message by message."""

from collections.abc import Sequence

from pate_tf.silos.messages import Answer, CoordinatorCore, QueryBatch, Reply
from pate_tf.silos.silo import Silo


class LocalConnection:
    """A silo's connection to a coordinator in the same process; a `Connection`."""

    def __init__(self, core: CoordinatorCore, silo: str) -> None:
        """Takes the coordinator, and the silo's name."""
        self._core, self._silo = core, silo

    def poll(self) -> QueryBatch | None:
        """Returns the next batch that waits for this silo's reply; None if none does."""
        return self._core.poll(self._silo)

    def submit(self, reply: Reply) -> Answer:
        """Hands over a reply."""
        return self._core.submit(self._silo, reply)


class InProcess:
    """Silos in one process, asked one after another."""

    def __init__(self, core: CoordinatorCore, silos: Sequence[Silo]) -> None:
        """Takes the coordinator and the silos."""
        self._members = [(silo, LocalConnection(core, silo.name)) for silo in silos]

    def run(self) -> None:
        """Has every silo answer whatever waits for it."""
        for silo, connection in self._members:
            while silo.step(connection) is Answer.OK:
                pass
