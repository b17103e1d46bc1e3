"""Servers and participants as processes, started as somebody types them, and killed."""

import functools
import importlib
import itertools
import os
import pathlib
import signal
import socket
import time

from script_processes import PATIENCE, Ended, Running, run_script, start_script

COMMAND = "pate_tf/cli/selective_sgd.py"
OF_SERVER = "pate_tf.selective_sgd.turn_server:TurnServer"
# Where a process may die: method, and whether before or after it.
SERVER_DIES = {
    "before an upload is written": ("pate_tf.selective_sgd.server:Journal.append", True),
    "before it is applied": (f"{OF_SERVER}._apply", True),
    "before it is answered": (f"{OF_SERVER}._apply", False),
    "before the journal is begun anew": ("pate_tf.selective_sgd.server:Journal.begin", True),
    "after the journal was begun anew": ("pate_tf.selective_sgd.server:Journal.begin", False),
}
LINE = "pate_tf.selective_sgd.network:ParameterConnection"
PARTICIPANT_DIES = {
    "before it pulls": (f"{LINE}.pull", True),
    "before it trains": (f"{LINE}.pull", False),
    "before its turn is saved": ("pate_tf.selective_sgd.store:Store.save", True),
    "before it uploads": (f"{LINE}.push", True),
    "after it uploaded": (f"{LINE}.push", False),
}


def die_at(place: str, before: bool, number: int) -> None:
    """Kills the process at a call of that number, from 0, of a method."""
    module, _, names = place.partition(":")
    kind_name, _, name = names.partition(".")
    kind = getattr(importlib.import_module(module), kind_name)
    original, calls = getattr(kind, name), itertools.count()

    def dies(*arguments, **options):
        call = next(calls)
        if before and call == number:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return original(*arguments, **options)
        finally:  # also of a call that found the other end killed
            if call == number:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(kind, name, dies)


def dying(place: tuple[str, bool], number: int) -> functools.partial:
    return functools.partial(die_at, place[0], place[1], number)


def write_roster(folder: pathlib.Path, names, *, rounds: int, model: str = "linear") -> None:
    lines = ['run = "digits"', 'dataset = "digits"', f'model = "{model}"']
    lines += ["[settings]", f"rounds = {rounds}", "upload = 0.1", "download = 0.8"]
    for name in names:
        lines += ["[[participant]]", f'name = "{name}"']
    (folder / "roster.toml").write_text("\n".join(lines))
    made = run_script(
        *("pate_tf/cli/silo.py", "certificates", "--demo", f"--names={','.join(names)}"),
        folder=folder,
    )
    assert made.code == 0, made.err


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def run_together(folder: pathlib.Path, names, *, dies=None) -> dict[str, list[Ended]]:
    """Runs a server and participants to their end, and starts anew whoever was killed.

    Args:
      folder: with roster and certificates; everybody's folder lies in it.
      names: of the participants.
      dies: for "server" and names, what is set up in each of their lives, one after another.

    Returns:
      How each life of each ended.
    """
    dies = {name: list(setups) for name, setups in (dies or {}).items()}
    port = free_port()
    flags = {
        "server": ("serve", f"--address=localhost:{port}", "--train_dir=server"),
        **{
            name: (
                *("join", f"--server=localhost:{port}", f"--participant={name}"),
                *("--data=dealt", f"--train_dir={name}"),
            )
            for name in names
        },
    }

    def start(name: str) -> Running:
        setups = dies.get(name)
        setup = setups.pop(0) if setups else None
        return start_script(COMMAND, *flags[name], folder=folder, setup=setup)

    running = {name: start(name) for name in flags}
    ended: dict[str, list[Ended]] = {name: [] for name in flags}
    end = time.monotonic() + 4 * PATIENCE
    try:
        while running:
            assert time.monotonic() < end, {
                name: one.err.read_text() for name, one in running.items()
            }
            for name, one in list(running.items()):
                one.process.join(0.05)
                if one.process.is_alive():
                    continue
                ended[name].append(one.wait())
                del running[name]
                if ended[name][-1].code == -signal.SIGKILL:
                    running[name] = start(name)
                else:
                    assert ended[name][-1].code == 0, (name, ended[name][-1].err[-3000:])
    finally:
        for one in running.values():
            one.kill()
            one.process.join()
    return ended
