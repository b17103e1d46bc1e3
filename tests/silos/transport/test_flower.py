"""A coordinator, silos and aggregators whose messages Flower transports."""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from script_processes import REPOSITORY, free_port, run_script, start
from transport_helpers import AGGREGATORS

pytest.importorskip("flwr", reason="needs pip install 'pate_tf[flower]', as CI has it")

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from pate_tf.accounting.local import SecureHistogram
from pate_tf.data.data_source import FileSource
from pate_tf.flower.app import ANSWER_SECONDS, FlowerServer, client_app
from pate_tf.net.credentials import write_demo_certificates
from pate_tf.silos import Asking, Coordinator, Member, Policy, SiloRoster
from pate_tf.silos.protocol import Keys
from pate_tf.silos.transport import AggregatorService, coordinator_services

FIRST, *_ = SILOS = ("hospital-1", "hospital-2", "hospital-3")
SECURE = SecureHistogram(sigma=0.3, num_parties=4, threshold=1)
DATA = "--public=public.csv --schema=schema.toml --roster=roster.toml"
SCHEMA = 'label = "ill"\nclasses = ["no", "yes"]\n[columns.age]\nlow = 0\nhigh = 100\n'
TEACHER = "def teacher(dataset):\n    return lambda inputs: (inputs[:, 0] >= 50).astype(int)\n"
COORDINATOR = f"{DATA} --method=feature_sums --epsilon=1 --train_dir=run --round_seconds=900"


def set_up(folder, *, method, allowed, budget, port=7000):
    """Makes tables, folders, keys and a roster; returns the start configuration of each node."""
    random = np.random.default_rng(0)
    for name in (*SILOS, "public"):
        ages = random.integers(0, 100, 300)
        rows = "".join(f"{age},{'yes' if age >= 50 else 'no'}\n" for age in ages)
        (folder / f"{name}.csv").write_text("age,ill\n" + rows)
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "votes.py").write_text(TEACHER)
    terms = {"epsilon_budget": budget, "delta": 1e-5, "allowed": (allowed,), "least_sigma": 0.1}
    members = []
    for name in SILOS:
        keys = Keys.load_or_create(folder / name / "sensitive" / "keys.json", name)
        members.append(Member(name=name, identity=keys.identity))
        policy = Policy(silo=name, coordinator=f"localhost:{port}", **terms)
        policy.write(folder / name / "policy.toml")
    keys = [Keys.load_or_create(folder / name / "keys.json", name) for name in AGGREGATORS]
    identities = {"members": tuple(members), "aggregators": tuple(each.identity for each in keys)}
    SiloRoster(run="ward", delta=1e-5, **identities).write(folder / "roster.toml")
    nodes = {name: f"silo --silo_dir={name} --private={name}.csv {DATA} {method}" for name in SILOS}
    flags = "--roster=roster.toml --aggregator_dir="
    return nodes | {name: f"aggregator {flags}{name}" for name in AGGREGATORS}


def charges(folder, name):
    """Returns a silo's report on each round, without the time."""
    flags = ("silo", "report", f"--silo_dir={name}")
    assert run_script("pate_tf/cli/main.py", *flags, folder=folder).code == 0
    rounds = json.loads((folder / name / "report.json").read_text())["rounds"]
    assert len((folder / name / "report.csv").read_text().splitlines()) == 1 + len(rounds)
    return [{field: value for field, value in each.items() if field != "time"} for each in rounds]


class Nodes:
    """Nodes of this process, each a ClientApp, that answer requests at once.

    The first node answers after one request for its name and two for a task, and then every time.
    """

    def __init__(self, nodes):
        self.configurations = dict(enumerate(nodes, start=1))
        self.replies = {}
        self.asked = []

    def get_node_ids(self):
        return list(self.configurations)

    def push_messages(self, messages):
        (message,) = messages
        message.metadata.__dict__["_message_id"] = message.object_id
        node = message.metadata.dst_node_id
        self.asked.append(node)
        context = Context(1, node, {"pate": self.configurations[node]}, RecordDict(), {})
        try:
            reply = client_app(message, context)
        except Exception as error:  # as Flower reports it
            reply = Message(Error(code=1, reason=repr(error)), reply_to=message)
        self.replies[message.object_id] = (node, reply)
        return [message.object_id]

    def pull_messages(self, identifiers):
        held = 1 if self.asked.count(1) == 2 else None
        there = [each for each in identifiers if self.replies[each][0] != held]
        return [self.replies[each][1] for each in there]


def ask(nodes):
    """Lets nodes label 20 inputs; prints the number of correct labels, and the charges of silos."""
    for field in ("task_id", "run_id", "node_id"):  # of a process that Flower started
        setattr(TaskIdentity, field, 1)
    sys.path.append(os.getcwd())
    files = FileSource(public=pathlib.Path("public.csv"), schema=pathlib.Path("schema.toml"))
    public = files.load_public()
    pool = public.split(public.dataset.pool_size).pool
    roster = SiloRoster.read(pathlib.Path("roster.toml"))
    grid, line, now = Nodes(nodes), AggregatorService(AGGREGATORS), [0.0]
    asking = Asking(mechanism=SECURE, seconds=60.0)
    options = {"folder": "coordinator", "asking": asking, "aggregators": line.asks}
    with Coordinator(roster, **options) as coordinator, ThreadPoolExecutor(1) as thread:
        services = coordinator_services(coordinator.journal, line)
        server = FlowerServer(grid, roster, services, clock=lambda: now[0])
        labels = thread.submit(coordinator.ask, pool, np.arange(20))
        while not labels.done():  # nodes answer in the main thread, as in Flower's processes
            server.step()
            now[0] += ANSWER_SECONDS
        is_right = labels.result().labels == (pool.inputs[:20, 0] >= 50)
        epsilons = {spent.name: spent.epsilon for spent in coordinator.spending()}
    print(json.dumps([int(is_right.sum()), grid.asked.count(1), epsilons]))


def test_silos_and_aggregators_answer_over_flower(tmp_path):
    """One silo answers twice, one node has a silo's name without its keys, one is misconfigured."""
    votes = "--method=pate --teacher=votes:teacher"
    nodes = set_up(tmp_path, method=votes, allowed=SECURE.name, budget=400.0)
    keyless = shutil.ignore_patterns("keys.json")
    shutil.copytree(tmp_path / "hospital-3", tmp_path / "impostor", ignore=keyless)
    false = nodes["hospital-3"].replace("--silo_dir=hospital-3", "--silo_dir=impostor")
    broken = nodes["hospital-2"].replace(":teacher", ":secret")
    ended = start(functools.partial(ask, [*nodes.values(), false, broken]), folder=tmp_path).wait()
    assert ended.code == 0, ended.err
    num_right, num_asked, epsilons = json.loads(ended.out.splitlines()[-1])
    assert num_right >= 18 and num_asked >= 3
    log = ended.out + ended.err
    assert f"node {len(nodes) + 1} was dropped: the signature does not match this name" in log
    assert "hospital-2 failed: RuntimeError('pate ended with exit code 1" in log
    for name in SILOS:
        (only,) = charges(tmp_path, name)
        assert only["mechanism"] == SECURE.name and 10 < only["queries"] <= 20  # once each
        assert only["epsilon"] == only["epsilon_so_far"] == epsilons[name]


class Processes:
    """Processes by name, each in its own process group with a log."""

    def __init__(self, folder):
        self.folder = folder
        self.running = {}

    def start(self, name, *command):
        with open(self.folder / f"{name}.log", "a") as log:
            output = {"stdout": log, "stderr": log}
            self.running[name] = subprocess.Popen(
                command, cwd=self.folder, start_new_session=True, **output
            )

    def pate(self, name, flags):
        self.start(name, sys.executable, "-m", "pate_tf.cli.main", *flags.split())

    def kill(self, name):
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def until(self, name, text, other="\0"):
        """Waits until a log has one of two texts; returns whether it has the first."""
        path = self.folder / f"{name}.log"
        end = time.monotonic() + 900.0
        while text not in path.read_text() and other not in path.read_text():
            assert time.monotonic() < end, path.read_text()[-2000:]
            time.sleep(0.5)
        return text in path.read_text()

    def statement(self):
        """Returns the text of the statement, without the student's digest."""
        text = (self.folder / "run" / "released" / "privacy_statement.json").read_text()
        return re.sub("[0-9a-f]{8,}", "", text)


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """Returns the processes of a folder; all end with the test."""
    for name, value in {
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }.items():
        monkeypatch.setenv(name, value)
    started = []
    yield lambda folder: started.append(Processes(folder)) or started[-1]
    for each in started:
        for name in [*each.running]:
            each.kill(name)


@pytest.mark.long
def test_a_run_over_flower_is_that_of_pate_coordinator(tmp_path, processes, monkeypatch):
    """A SuperNode and the SuperLink are killed in the middle. Then the budgets are used up."""
    sums = {"method": "--method=feature_sums", "allowed": "secure_feature_sums", "budget": 1.0}
    port = free_port()
    nodes = set_up(tmp_path, **sums, port=port)
    shutil.copytree(tmp_path, tmp_path / "grpc")
    link, *ports = (str(free_port()) for _ in range(1 + len(nodes)))
    port_of = dict(zip(nodes, ports, strict=True))
    entry = f'default = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    (tmp_path / "config.toml").write_text(f"[superlink]\n{entry}")
    over_flower = processes(tmp_path)

    def start_link():
        flags = ("--insecure", "--port", link, "--database", str(tmp_path / "link.db"))
        install = "--disable-runtime-dependency-installation"
        over_flower.start("link", "flower-superlink", *flags, install)

    def start_node(name):
        flags = ("--insecure", "--superlink", f"127.0.0.1:{link}", "--port", port_of[name])
        configuration = ("--node-config", f"pate='{nodes[name]}'")
        over_flower.start(name, "flower-supernode", *flags, *configuration)

    def submit(name, flags=COORDINATOR):
        (tmp_path / f"{name}.toml").write_text(f"coordinator = '{flags}'\n")
        for _ in range(600):  # until the SuperLink listens
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(link))):
                break
            time.sleep(0.5)
        app = (str(REPOSITORY / "pate_tf" / "flower"), "here", "--stream")
        over_flower.start(name, "flwr", "run", *app, "--run-config", f"{name}.toml")

    start_link()
    for name in nodes:
        start_node(name)
    submit("first")
    over_flower.until("first", "3 of 3 silos called")
    over_flower.kill(FIRST)
    start_node(FIRST)
    over_flower.until("first", "3 answered")
    over_flower.kill("link")
    start_link()
    for number in itertools.count():
        submit(f"again-{number}")
        if over_flower.until(f"again-{number}", "epsilon of hospital-3", "used by another process"):
            break  # otherwise the first ServerApp is still running
    roster = tmp_path / "roster.toml"
    roster.write_text(roster.read_text().replace('"ward"', '"ward-2"'))
    submit("third", COORDINATOR.replace("--train_dir=run", "--train_dir=other"))
    over_flower.until("third", f"{FIRST} refused round-1: budget_spent")
    over_flower.until("third", "pate ended with exit code 3")

    over_grpc = processes(tmp_path / "grpc")
    monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / "grpc" / "state"))
    write_demo_certificates(tmp_path / "grpc" / "certificates", [*nodes])
    over_grpc.pate("coordinator", f"coordinator {COORDINATOR} --address=localhost:{port}")
    for name, flags in nodes.items():
        if name in AGGREGATORS:
            flags += f" --coordinator=localhost:{port}"
        over_grpc.pate(name, flags.replace("silo ", "silo serve "))
    over_grpc.until("coordinator", "epsilon of hospital-3")
    assert over_flower.statement() == over_grpc.statement()
    for name in SILOS:
        (only,) = charges(tmp_path, name)
        assert charges(tmp_path / "grpc", name) == [only] and only["epsilon"] <= 1.0
