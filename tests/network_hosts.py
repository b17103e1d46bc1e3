"""Separate hosts: network namespaces whose cables delay and lose packets and can be pulled.

    python tests/network_hosts.py [FOLDER]

runs the demonstration of silos on ten hosts. It pulls the cable of a silo for 20 seconds. It pulls
the cable of an aggregator for good after all aggregators have agreed on the silos. Needs root.

Each host has an Ethernet interface. Its other end is a switch in this process, because some kernels
have no `netem`.
"""

import contextlib
import fcntl
import heapq
import itertools
import os
import pathlib
import random
import select
import struct
import subprocess
import sys
import threading
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import demo

TUNSETIFF, TUNSETCARRIER, TAP_WITHOUT_HEADER = 0x400454CA, 0x400454E2, 0x1002
DELAY, LOSS, PULLED = 0.1, 0.01, 20.0


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


class Network(contextlib.ExitStack):
    """Hosts on a switch, which are all removed at the end."""

    def __init__(self, names, *, delay=DELAY, loss=LOSS):
        super().__init__()
        self.addresses, self._cables, self._pulled = {}, {}, set()
        self._delay, self._loss, self._ended = delay, loss, False
        for number, name in enumerate(names, 1):
            host, interface = self.host(name), f"t{os.getpid()}-{number}"
            ip("netns", "add", host)
            self.callback(ip, "netns", "delete", host)
            cable = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            self.callback(os.close, cable)
            wanted = struct.pack("16sH22x", interface.encode(), TAP_WITHOUT_HEADER)
            fcntl.ioctl(cable, TUNSETIFF, wanted)
            self._cables[name], self.addresses[name] = cable, f"10.99.0.{number}"
            ip("link", "set", interface, "netns", host)
            ip("-n", host, "address", "add", f"{self.addresses[name]}/24", "dev", interface)
            for device in (interface, "lo"):
                ip("-n", host, "link", "set", device, "up")
        switch = threading.Thread(target=self._switch)
        switch.start()
        self.callback(switch.join)
        self.callback(setattr, self, "_ended", True)

    def host(self, name):
        """The network namespace of a host."""
        return f"{name}-{os.getpid()}"

    def on(self, name):
        """Returns the words that start a command on a host."""
        return ["ip", "netns", "exec", self.host(name)]

    def pull(self, name):
        self._pulled.add(self._cables[name])
        fcntl.ioctl(self._cables[name], TUNSETCARRIER, struct.pack("i", 0))

    def plug(self, name):
        fcntl.ioctl(self._cables[name], TUNSETCARRIER, struct.pack("i", 1))
        self._pulled.discard(self._cables[name])

    def _switch(self):
        chance, numbers, cables = random.Random(0), itertools.count(), self._cables.values()
        waiting, learnt = [], {}
        while not self._ended:
            for cable in select.select([*cables], [], [], 0.005)[0]:
                frame = os.read(cable, 2048)
                learnt[frame[6:12]] = cable
                known = learnt.get(frame[:6])
                others = [other for other in cables if other != cable]
                for target in others if known is None else [known]:
                    if chance.random() >= self._loss and not self._pulled & {cable, target}:
                        at = time.monotonic() + self._delay
                        heapq.heappush(waiting, (at, next(numbers), target, frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, target, frame = heapq.heappop(waiting)
                with contextlib.suppress(OSError):  # its cable was pulled meanwhile
                    os.write(target, frame)


def wait_for(text, log):
    """Waits until a process has written a text; raises TimeoutError after five minutes."""
    for _ in range(30_000):
        if log.exists() and text in log.read_text():
            return
        time.sleep(0.01)
    raise TimeoutError(f"{log}: expected {text}")


def demonstrate(folder, **settings):
    """Runs the demonstration of silos on separate hosts; returns the state of the cables."""
    silos = [f"silo-{number}" for number in range(1, demo.NUM_SILOS + 1)]
    aggregators = [f"aggregator-{number}" for number in range(1, demo.NUM_AGGREGATORS + 1)]
    events = []

    def pull_cables():
        wait_for("connects to", folder / "silo-1.log")
        network.pull("silo-1")
        events.append("silo-1 is cut off")
        time.sleep(PULLED)
        network.plug("silo-1")
        events.append("silo-1 is back")
        wait_for("agree: ok", folder / "aggregator-4.log")
        network.pull("aggregator-4")
        events.append("aggregator-4 is cut off for good")

    with Network([*silos, *aggregators, "coordinator"]) as network:
        pulling = threading.Thread(target=pull_cables, daemon=True)
        pulling.start()
        address = f"{network.addresses['coordinator']}:7000"
        demo.demonstrate_silos(folder, on_host=network.on, address=address, **settings)
        pulling.join(5.0)
    return events


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("error: expected root, who may make network namespaces")
    print(*demonstrate(pathlib.Path((sys.argv[1:] or ["runs/demo-hosts"])[0])), sep="; ")
