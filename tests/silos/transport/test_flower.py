"""A coordinator, silos and aggregators whose messages Flower carries."""

import contextlib
import functools
import json
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
from script_processes import REPOSITORY, run_script, start

pytest.importorskip("flwr", reason="needs pip install 'pate_tf[flower]', as CI has it")

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from pate_tf.accounting.local import SecureHistogram
from pate_tf.data.data_source import FileSource
from pate_tf.flower.app import ANSWER_SECONDS, FlowerServer, client_app
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


def ask(nodes):
    """Labels of 20 inputs, over Flower: prints how many are right, and each silo's epsilon."""
    for field in ("task_id", "run_id", "node_id"):  # of a process that Flower started
        setattr(TaskIdentity, field, 1)
    sys.path.append(os.getcwd())
    files = FileSource(public=pathlib.Path("public.csv"), schema=pathlib.Path("schema.toml"))
    public = files.load_public()
    pool = public.split(public.dataset.pool_size).pool
    roster = SiloRoster.read(pathlib.Path("roster.toml"))
    grid, line, now = Nodes(nodes, slow=(1,)), AggregatorService(AGGREGATORS), [0.0]
    asking = Asking(mechanism=SECURE, seconds=60.0)
    options = {"folder": "coordinator", "asking": asking, "aggregators": line.asks}
    with Coordinator(roster, **options) as coordinator, ThreadPoolExecutor(1) as thread:
        services = coordinator_services(coordinator.journal, line)
        server = FlowerServer(grid, roster, services, clock=lambda: now[0])
        labels = thread.submit(coordinator.ask, pool, np.arange(20))
        while not labels.done():  # nodes answer in the main thread, as in a process of Flower's
            server.step()
            now[0] += ANSWER_SECONDS
        is_right = labels.result().labels == (pool.inputs[:20, 0] >= 50)
        epsilons = {spent.name: spent.epsilon for spent in coordinator.spending()}
    print(json.dumps({"right": int(is_right.sum()), "epsilons": epsilons, "asked": grid.asked[1]}))


def test_silos_and_aggregators_answer_over_flower(tmp_path):
    """One silo answers twice, one node has a silo's name without its keys, one is misconfigured."""
    nodes = set_up(tmp_path, policy=POLICY, budget=400.0)
    keyless = shutil.ignore_patterns("keys.json")
    shutil.copytree(tmp_path / "hospital-3", tmp_path / "impostor", ignore=keyless)
    false = nodes["hospital-3"].replace("--silo_dir=hospital-3", "--silo_dir=impostor")
    broken = nodes["hospital-2"].replace(":teacher", ":secret")
    call = functools.partial(ask, [*nodes.values(), false, broken])
    ended = start(call, folder=tmp_path).wait()
    assert ended.code == 0, ended.err
    log = ended.out + ended.err
    result = json.loads(ended.out.splitlines()[-1])
    assert result["right"] >= 18 and result["asked"] >= 3
    assert f"node {len(nodes) + 1} was dropped: the signature is not of this name" in log
    assert "hospital-2 failed: RuntimeError('pate ended with exit code 1" in log
    for name in SILOS:
        (each,) = charges(tmp_path, name)
        assert each["mechanism"] == SECURE.name and 10 < each["queries"] <= 20  # once each
        assert each["epsilon"] == each["epsilon_so_far"] == result["epsilons"][name]


class Processes:
    """Processes by name, in groups of their own, that write a log each."""

    def __init__(self, folder):
        self.folder = folder
        self.running = {}
        self.environment = {
            **os.environ,
            "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "PATE_TF_STATE": str(folder / "state"),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def start(self, name, *command):
        with open(self.folder / f"{name}.log", "a") as log:
            self.running[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name):
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def until(self, name, *texts, patience=900.0):
        """Waits until a log has one of these texts."""
        path = self.folder / f"{name}.log"
        end = time.monotonic() + patience
        while not any(text in path.read_text() for text in texts):
            assert time.monotonic() < end, path.read_text()[-2000:]
            time.sleep(0.5)


COORDINATOR = (
    "--roster=roster.toml --method=feature_sums --epsilon=1 --public=public.csv "
    "--schema=schema.toml --train_dir=run --round_seconds=900"
)


class FlowerRun(Processes):
    """A SuperLink, and a SuperNode for each silo and aggregator."""

    def __init__(self, folder, nodes):
        super().__init__(folder)
        self.nodes = nodes
        self.ports = dict(zip((*nodes, "superlink"), free_ports(len(nodes) + 1), strict=True))
        self.address = f"127.0.0.1:{self.ports['superlink']}"
        (folder / "flwr").mkdir()
        entry = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\n'
        (folder / "flwr" / "config.toml").write_text(entry + "insecure = true\n")
        self.start_superlink()
        for name in nodes:
            self.start_node(name)

    def start_superlink(self):
        flags = ("--port", str(self.ports["superlink"]), "--database", str(self.folder / "link.db"))
        install = "--disable-runtime-dependency-installation"
        self.start("superlink", "flower-superlink", "--insecure", *flags, install)
        self.until("superlink", "Uvicorn running", "startup complete", "200")

    def start_node(self, name):
        flags = ("--superlink", self.address, "--port", str(self.ports[name]))
        configuration = f"pate='{self.nodes[name]}'"
        self.start(name, "flower-supernode", "--insecure", *flags, "--node-config", configuration)

    def submit(self, name, flags=COORDINATOR):
        """Submits a run, whose log is that of this name."""
        (self.folder / f"{name}.toml").write_text(f"coordinator = '{flags}'\n")
        app = str(REPOSITORY / "pate_tf" / "flower")
        self.start(name, "flwr", "run", app, "here", "--run-config", f"{name}.toml", "--stream")


def free_ports(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def statement(folder):
    """The statement of a run, without what differs between two runs."""
    (path,) = (folder / "run" / "released").rglob("privacy_statement.json")
    return {
        name: value
        for name, value in json.loads(path.read_text()).items()
        if name not in ("student_digest", "created", "date")
    }


@pytest.mark.long
def test_a_run_over_flower_is_that_of_pate_coordinator(tmp_path):
    """A SuperNode and the SuperLink are killed in the middle; then budgets are used up."""
    nodes = set_up(tmp_path)
    here = tmp_path / "grpc"
    shutil.copytree(tmp_path, here)
    with contextlib.ExitStack() as stack:
        over_flower, over_grpc = FlowerRun(tmp_path, nodes), Processes(here)
        for processes in (over_flower, over_grpc):
            stack.callback(lambda each=processes: [each.kill(name) for name in [*each.running]])
        over_flower.submit("first")
        over_flower.until("first", "3 of 3 silos called")
        over_flower.kill("hospital-1")
        over_flower.start_node("hospital-1")
        over_flower.until("first", "3 answered")
        over_flower.kill("superlink")
        over_flower.start_superlink()
        over_flower.submit("second")
        over_flower.until("second", "epsilon of hospital-3")
        roster = tmp_path / "roster.toml"
        roster.write_text(roster.read_text().replace('"ward"', '"ward-2"'))
        over_flower.submit("third", COORDINATOR.replace("--train_dir=run", "--train_dir=again"))
        over_flower.until("third", "hospital-1 refused round-1: budget_spent")
        over_flower.until("third", "pate ended with exit code 3")
        pate(here, "silo", "certificates", "--demo", f"--names={','.join(nodes)}")
        (port,) = free_ports(1)
        command = (sys.executable, "-m", "pate_tf.cli.main")
        for name, flags in nodes.items():
            role, *flags = flags.split()
            if role == "silo":
                policy = here / name / "policy.toml"
                policy.write_text(policy.read_text().replace(":7000", f":{port}"))
                over_grpc.start(name, *command, role, "serve", *flags)
            else:
                over_grpc.start(name, *command, role, *flags, f"--coordinator=localhost:{port}")
        over_grpc.start(
            "first", *command, "coordinator", f"--address=localhost:{port}", *COORDINATOR.split()
        )
        over_grpc.until("first", "epsilon of hospital-3")
    assert statement(tmp_path) == statement(here)
    for name in SILOS:
        (only,) = charges(tmp_path, name)
        assert charges(here, name) == [only] and only["epsilon"] <= 1.0
