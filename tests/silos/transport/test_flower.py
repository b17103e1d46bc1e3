"""A coordinator, silos and aggregators whose messages Flower carries."""

import json
import logging
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from script_processes import REPOSITORY, run_script

pytest.importorskip("flwr", reason="needs pip install 'pate_tf[flower]', as CI has it")

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from pate_tf.accounting.local import SecureHistogram
from pate_tf.data.data_source import FileSource
from pate_tf.flower.app import ANSWER_SECONDS, FlowerServer, client_app
from pate_tf.ledger.ledger_file import BudgetExceeded
from pate_tf.silos import Asking, Coordinator, SiloRoster
from pate_tf.silos.transport import AggregatorService, coordinator_services

SILOS = ("hospital-1", "hospital-2", "hospital-3")
AGGREGATORS = ("aggregator-1", "aggregator-2", "aggregator-3", "aggregator-4")
SECURE = SecureHistogram(sigma=0.3, num_parties=4, threshold=1)
SCHEMA = """label = "ill"
classes = ["no", "yes"]
[columns.age]
low = 0
high = 100
"""
TEACHER = "teacher_of_flower"
POLICY = 'allowed = ["secure_histogram"]\nleast_sigma = 0.1\n'
VOTES = f"--teacher={TEACHER}:teacher"


def pate(folder, *arguments):
    """What a command prints."""
    ended = run_script("pate_tf/cli/main.py", *arguments, folder=folder)
    assert ended.code == 0, ended.err
    return ended.out


def set_up(folder, *, policy="", budget=1.0, **flags):
    """Makes tables, folders, keys and a roster; returns what each node is started with."""
    random = np.random.default_rng(0)
    for name in (*SILOS, "public"):
        ages = random.integers(0, 100, 300)
        rows = "".join(f"{age},{'yes' if age >= 50 else 'no'}\n" for age in ages)
        (folder / f"{name}.csv").write_text("age,ill\n" + rows)
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "policy.toml").write_text(policy)
    code = "def teacher(dataset):\n    return lambda inputs: (inputs[:, 0] >= 50).astype(int)\n"
    (folder / f"{TEACHER}.py").write_text(code)
    roster = 'run = "ward"\ndelta = 1e-5\n'
    nodes = {}
    method = "pate" if policy else "feature_sums"
    data = "--public=public.csv --schema=schema.toml --roster=roster.toml"
    for name in SILOS:
        owned = (f"--silo_dir={name}",)
        terms = (f"--name={name}", f"--epsilon_budget={budget}", "--coordinator=localhost:7000")
        terms += ("--delta=1e-5", f"--method={method}", *["--policy=policy.toml"] * bool(policy))
        pate(folder, "silo", "init", *owned, *terms)
        roster += pate(folder, "silo", "keys", *owned)
        own = VOTES if policy else ""
        nodes[name] = f"silo {owned[0]} --private={name}.csv {data} --method={method} {own}"
    for name in AGGREGATORS:
        owned = f"--aggregator_dir={name}"
        roster += pate(folder, "aggregator", owned, f"--name={name}")
        nodes[name] = f"aggregator {owned} --roster=roster.toml"
    (folder / "roster.toml").write_text(roster)
    return nodes


def charges(folder, name):
    """What a silo's report says of each round, without the time."""
    pate(folder, "silo", "report", f"--silo_dir={name}")
    rounds = json.loads((folder / name / "report.json").read_text())["rounds"]
    assert len((folder / name / "report.csv").read_text().splitlines()) == 1 + len(rounds)
    return [{field: value for field, value in each.items() if field != "time"} for each in rounds]


class Nodes(Grid):
    """Nodes of this process, each a ClientApp, that answer as soon as they are asked.

    A node of `slow` answers once it was asked twice, and then both times.
    """

    run = None

    def __init__(self, nodes, slow=()):
        self.configurations = dict(enumerate(nodes, start=1))
        self.slow = slow
        self.replies = {}
        self.asked = dict.fromkeys(self.configurations, 0)

    def set_run(self, run):
        raise NotImplementedError

    def create_message(self, *arguments, **options):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.configurations)

    def push_messages(self, messages):
        (message,) = messages
        message.metadata.__dict__["_message_id"] = message.object_id
        node = message.metadata.dst_node_id
        self.asked[node] += 1
        context = Context(1, node, {"pate": self.configurations[node]}, RecordDict(), {})
        try:
            reply = client_app(message, context)
        except Exception as error:  # as Flower reports it
            reply = Message(Error(code=1, reason=repr(error)), reply_to=message)
        self.replies[message.object_id] = reply
        return [message.object_id]

    def pull_messages(self, identifiers):
        if any(self.asked[node] < 3 for node in self.slow):  # its name, and twice its task
            identifiers = [each for each in identifiers if self.sender(each) not in self.slow]
        return [self.replies.pop(each) for each in identifiers if each in self.replies]

    def sender(self, identifier):
        return self.replies[identifier].metadata.src_node_id if identifier in self.replies else None


def test_silos_and_aggregators_answer_over_flower(tmp_path, monkeypatch, caplog):
    """One silo answers twice, one node has a silo's name without its keys, one is misconfigured."""
    nodes = set_up(tmp_path, policy=POLICY, budget=400.0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree("hospital-3", "impostor", ignore=shutil.ignore_patterns("keys.json"))
    false = nodes["hospital-3"].replace("--silo_dir=hospital-3", "--silo_dir=impostor")
    broken = nodes["hospital-2"].replace("hospital-2.csv", "secret-of-hospital-2.csv")
    pool = FileSource(public=pathlib.Path("public.csv"), schema=pathlib.Path("schema.toml"))
    public = pool.load_public()
    pool = public.split(public.dataset.pool_size).pool
    now = [0.0]

    def ask(grid, roster, number):
        """Labels of so many inputs; the nodes answer in the main thread, as Flower has them do."""
        line = AggregatorService(AGGREGATORS)
        asking = Asking(mechanism=SECURE, seconds=120.0)
        options = {"folder": tmp_path / "coordinator", "asking": asking, "aggregators": line.asks}
        with Coordinator(roster, **options) as coordinator, ThreadPoolExecutor(1) as thread:
            services = coordinator_services(coordinator.journal, line)
            server = FlowerServer(grid, roster, services, clock=lambda: now[0])
            labels = thread.submit(coordinator.ask, pool, np.arange(number))
            while not labels.done():
                server.step()
                now[0] += ANSWER_SECONDS
            return labels.result(), coordinator.spending()

    roster = SiloRoster.read(tmp_path / "roster.toml")
    grid = Nodes([*nodes.values(), false, broken], slow=(1,))
    with caplog.at_level(logging.WARNING):
        labels, spending = ask(grid, roster, 20)
    truth = (pool.inputs[:20, 0] >= 50).astype(int)
    assert labels.num_answered == 20 and (labels.labels == truth).mean() > 0.9
    assert grid.asked[1] >= 3
    assert f"node {len(nodes) + 1} was dropped: the signature is not of this name" in caplog.text
    assert "failed: RuntimeError('pate ended with exit code" in caplog.text
    assert "secret" not in caplog.text
    for name, spent in zip(SILOS, spending, strict=True):
        (each,) = charges(tmp_path, name)
        assert each["mechanism"] == SECURE.name and each["queries"] == 20
        assert each["epsilon"] == each["epsilon_so_far"] == pytest.approx(spent.epsilon)
