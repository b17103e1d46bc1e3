"""A coordinator on the network: its silos and parties dial in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pate_tf.silos.messages import CoordinatorCore
from pate_tf.silos.secure.keys import PartyIdentity
from pate_tf.silos.secure.opening import OpenedHistogram
from pate_tf.silos.secure.roles import PartySums
from pate_tf.silos.transport import party_service, silo_service
from pate_tf.transport.credentials import TlsFiles
from pate_tf.transport.limits import Limits
from pate_tf.transport.server import Server


class PartyLine:
    """Parties that dial in, and the sums that they make for a coordinator.

    Args:
      parties: in the order of their numbers, as silos know them.
      limits: of every caller.
      seconds: how long to wait for a party's word on one step.
      on_opened: told of every histogram, with the silos that were left out.

    Attributes:
      service: what the parties call.
      sums: what a `Coordinator` takes as `secure`.
    """

    def __init__(
        self,
        parties: Sequence[PartyIdentity],
        *,
        limits: Limits | None = None,
        seconds: float = 120.0,
        on_opened: Callable[[OpenedHistogram], None] = lambda opened: None,
    ) -> None:
        names = [one.name for one in parties]
        self.service = party_service.PartyService(names, limits=limits, seconds=seconds)
        ways = [self.service.way_to(name) for name in names]
        self.sums = PartySums(parties, ways, on_opened=on_opened)


def serve_coordinator(
    address: str,
    core: CoordinatorCore,
    *,
    files: TlsFiles,
    silos: Sequence[str],
    parties: PartyLine | None = None,
    limits: Limits | None = None,
) -> Server:
    """Returns a running server of a coordinator.

    Args:
      address: `host:port`; port 0 for any free one.
      core: what silos see of the coordinator.
      files: certificate and key of the coordinator, and the authority.
      silos: names of those on the roster; nobody else gets in but the parties.
      parties: of secure aggregation; None without it.
      limits: of every caller.

    Raises:
      ValueError: if a name is a silo's and a party's, or the address can't be listened on.
      OSError: if a file can't be read.
    """
    services = {silo_service.SERVICE: silo_service.SiloService(core, limits).add_to}
    rosters: dict[str, Sequence[str]] = {silo_service.SERVICE: silos}
    if parties is not None:
        if set(parties.service.names) & set(silos):
            raise ValueError("parties: expected other names than those of silos, got one twice")
        services[party_service.SERVICE] = parties.service.add_to
        rosters[party_service.SERVICE] = parties.service.names
    return Server(address, files=files, services=services, rosters=rosters, limits=limits)
