"""Feature sums on a cluster of Dask: two workers, one of which is killed.

    python tools/cluster.py [FOLDER] [ROWS]

Sums a synthetic table of ROWS records (default 200,000) with protected owners, in one process and
on the cluster. The processes of the cluster share only the network and FOLDER. The second worker is
killed when it holds some results. The script prints rows, seconds and digests. It fails if the
digests of one process and of the cluster differ.
"""

import contextlib
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import distributed
import numpy as np
import pyarrow
from pyarrow import parquet

from pate_tf import beam
from pate_tf.data.data_source import DataSource, FileSource
from pate_tf.ledger.rollback_guard import STATE_VARIABLE

NUM_PARTS, NUM_FIELDS, NUM_RESULTS = 24, 8, 100
SCHEMA = 'label = "label"\nclasses = ["no", "yes"]\n' + "".join(
    f"[columns.f{field}]\nlow = -4\nhigh = 4\n" for field in range(NUM_FIELDS)
)


def write_table(folder: pathlib.Path, num_rows: int) -> DataSource:
    """Writes a schema, private records and public ones; returns the path of the public records."""
    (folder / "schema.toml").write_text(SCHEMA)
    for name, number in (("records.parquet", num_rows), ("public.parquet", 1_000)):
        random = np.random.default_rng(number)
        fields = random.normal(size=(number, NUM_FIELDS)).clip(-4, 4)
        columns = {f"f{field}": fields[:, field] for field in range(NUM_FIELDS)}
        columns["label"] = np.where(fields.sum(axis=1) > 0, "yes", "no")
        columns["who"] = np.char.mod("owner %d", random.integers(number // 4, size=number))
        table = pyarrow.table(columns)
        parquet.write_table(table, folder / name, row_group_size=-(-number // NUM_PARTS))
    public, schema = folder / "public.parquet", folder / "schema.toml"
    return DataSource(files=FileSource(public=public, schema=schema, owner="who"))


@contextlib.contextmanager
def cluster(folder: pathlib.Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yields the scheduler's address and the second worker; each process has its own folder."""
    file = folder / "scheduler.json"
    with contextlib.ExitStack() as started:
        for name in ("scheduler", "worker-1", "worker-2"):
            (folder / name).mkdir()
            options = ["--host=127.0.0.1", "--no-dashboard", f"--scheduler-file={file}"]
            if name != "scheduler":
                options += [f"--name={name}", "--nthreads=1", "--no-nanny"]
            module = f"distributed.cli.dask_{name.partition('-')[0]}"
            log = started.enter_context(open(folder / f"{name}.log", "w"))
            arguments = [sys.executable, "-m", module, *options]
            process = started.enter_context(
                subprocess.Popen(arguments, cwd=folder / name, stdout=log, stderr=log, text=True)
            )
            started.callback(process.kill)
        with distributed.Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            address: str = client.scheduler.address
        yield address, process


def kill_in_the_middle(address: str, worker: subprocess.Popen[str]) -> None:
    """Kills the second worker as soon as it holds some results, which are then lost."""

    def num_results(dask_scheduler: distributed.Scheduler) -> int:
        states = dask_scheduler.workers.values()
        return sum(len(state.has_what) for state in states if state.name == "worker-2")

    with distributed.Client(address, set_as_default=False) as client:
        while (number := client.run_on_scheduler(num_results)) < NUM_RESULTS:
            time.sleep(0.05)
        worker.kill()
    print(f"killed worker-2, which held {number} results", flush=True)


def main() -> None:
    """Sums in one process and on the cluster, and compares."""
    folder = pathlib.Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp()).absolute()
    num_rows = int(sys.argv[2]) if sys.argv[2:] else 200_000
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[STATE_VARIABLE] = str(folder / "state")
    data, digests = write_table(folder, num_rows), []
    with cluster(folder) as (address, worker):
        of_dask = ["--runner=apache_beam.runners.dask.dask_runner.DaskRunner"]
        of_dask += [f"--dask_client_address={address}", "--dask_partition_size=1"]
        for name, options in (("one process", []), ("two workers", of_dask)):
            if options:
                killing = threading.Thread(
                    target=kill_in_the_middle, args=(address, worker), daemon=True
                )
                killing.start()
            started = time.monotonic()
            sums = beam.sums(
                data,
                directory=folder / name,
                private=str(folder / "records.parquet"),
                work_dir=str(folder / "work"),
                options=options,
            )
            seconds = time.monotonic() - started
            digests.append(hashlib.sha256(sums.table.tobytes()).hexdigest()[:16])
            print(f"{name}: {sums.num_records:,} rows, {seconds:.1f} s, {digests[-1]}", flush=True)
        killing.join(10)
        are_same = len({*digests}) == 1
        if killing.is_alive() or worker.wait(10) == 0 or not are_same:
            raise SystemExit("error: the sums differ, or the worker was not killed")


if __name__ == "__main__":
    main()
