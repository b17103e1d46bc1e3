"""Teachers on public features: `python -m benchmarks.features --data_dir=DIR`.

Trains teachers on features of the public pool, releases labels for a worst-case epsilon, trains a
student on them and prints a row for each: what was asked of which mechanism, how many labels are
right, how good the student is on held-out samples, and how long each step took. Noise comes from
the operating system. `--rows=mnist` runs those whose name begins so; `--repetitions=3` prints
medians. What is found is kept in `--folder`, as JSON.

`--numbers=10,100,1000,10000` trains, saves and measures so many ridge teachers instead, each number
in a process of its own, and prints a row of a table for each: seconds from starting the command to
its end, seconds of all cores together, and the most memory. The representation should be in the
cache already: what is learnt once is no part of it.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from pate_tf.accounting.mechanisms import GaussianHistogram, Mechanism, StabilityGate
from pate_tf.accounting.planning import least_noise
from pate_tf.api import run_folder
from pate_tf.api import student_run as train_student
from pate_tf.api import teacher_training as train_teachers
from pate_tf.api.run_folder import TeacherRun
from pate_tf.api.settings import Budget, LabelSettings
from pate_tf.students.config import StudentSettings
from pate_tf.teachers.settings import TeacherSettings

DELTA = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One row.

    Attributes:
        dataset: its name.
        num_teachers: how many.
        epsilon: worst case, at delta 1e-5.
        num_queries: how many inputs of the pool are asked about.
        mechanism: of the two that are compared here.
        strategy: how queries are chosen.
        student: how the student learns.
    """

    dataset: str
    num_teachers: int
    epsilon: float
    num_queries: int
    mechanism: str = GaussianHistogram.name
    strategy: str = "diverse"
    student: str = "consistency"

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.dataset}-{self.num_teachers}-{self.epsilon:g}-{self.mechanism}"

    def drawn_by(self) -> Mechanism:
        """Returns the mechanism with the least noise for this epsilon."""
        if self.mechanism == StabilityGate.name:
            return StabilityGate(epsilon=self.epsilon, delta=DELTA)
        return least_noise(
            GaussianHistogram, num_queries=self.num_queries, epsilon=self.epsilon, delta=DELTA
        )


SETTINGS = (
    Setting(dataset="mnist", num_teachers=2_000, epsilon=0.1, num_queries=50),
    Setting(dataset="mnist", num_teachers=2_000, epsilon=0.05, num_queries=50),
    Setting(
        dataset="mnist",
        num_teachers=2_000,
        epsilon=0.05,
        num_queries=50,
        mechanism=StabilityGate.name,
        strategy="medoids",
    ),
    Setting(dataset="fashion_mnist", num_teachers=1_000, epsilon=1.0, num_queries=500),
    Setting(dataset="fashion_mnist", num_teachers=1_000, epsilon=0.25, num_queries=200),
    Setting(
        dataset="adult",
        num_teachers=1_000,
        epsilon=1.0,
        num_queries=2_000,
        strategy="first",
        student="supervised",
    ),
    Setting(
        dataset="adult",
        # Both chosen on labels made up for Adult's public inputs (`benchmarks.tables`): more
        # teachers lean to the commoner class, all in the same way.
        num_teachers=250,
        epsilon=1.0,
        num_queries=2_000,
        strategy="first",
        student="supervised",
    ),
)


def measured(one: Setting, data_dir: pathlib.Path | None, folder: pathlib.Path) -> dict[str, float]:
    """Runs a setting once in a folder of its own."""
    data = run_folder.DataSource(dataset=one.dataset, data_dir=data_dir)
    began = time.monotonic()
    teachers = train_teachers.run(
        TeacherSettings(model="ridge"),
        TeacherRun(
            dataset=one.dataset, data_dir=data_dir, num_teachers=one.num_teachers, folder=folder
        ),
    )
    trained = time.monotonic()
    student = train_student.run(
        train_student.StudentRun(
            sources=train_student.Sources(
                data=data, labels_from=run_folder.TeacherSource(folder=folder)
            ),
            settings=StudentSettings(student=one.student),
            labels=LabelSettings(
                mechanism=one.drawn_by(), strategy=one.strategy, num_queries=one.num_queries
            ),
            budget=Budget(delta=DELTA),
        )
    )
    return {
        "teacher_accuracy": teachers.values["teacher_accuracy_mean"],
        "epsilon": student.values["epsilon_worst_case"],
        "label_accuracy": student.values["label_accuracy"],
        "student_accuracy": student.values["student_accuracy"],
        "seconds_teachers": trained - began,
        "seconds_student": time.monotonic() - trained,
    }


def trained_apart(number: int, dataset: str, data_dir: pathlib.Path | None) -> str:
    """Trains so many ridge teachers in a process of their own; returns a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        flags = {"dataset": dataset, "nb_teachers": number, "model": "ridge"}
        flags |= {"train_dir": f"{folder}/run", "report_file": report}
        if data_dir is not None:
            flags["data_dir"] = data_dir
        began = time.monotonic()
        child = subprocess.Popen(
            [
                sys.executable,
                "train_teachers.py",
                *(f"--{name}={of}" for name, of in flags.items()),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(child.pid, 0)
        if status:
            raise SystemExit(f"train_teachers.py ended with {os.waitstatus_to_exitcode(status)}")
        seconds = time.monotonic() - began
        found = json.loads(report.read_text())
    unit = 2**20 if sys.platform == "darwin" else 2**10  # of ru_maxrss
    return (
        f"| {number:,} | {found['teacher_accuracy_mean']:.1%} | "
        f"{seconds:.1f} | {used.ru_utime + used.ru_stime:.1f} | {used.ru_maxrss / unit:,.0f} |"
    )


def main() -> None:
    """Reads the flags, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/features"))
    parser.add_argument("--rows", default="", help="what names of rows begin with")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--numbers", help="of teachers, with commas between")
    parser.add_argument("--dataset", default="mnist", help="that --numbers is measured on")
    asked = parser.parse_args()
    if asked.numbers:
        print("| teachers | mean teacher | seconds | CPU seconds | MiB |")
        print("|---|---|---|---|---|", flush=True)
        for number in map(int, asked.numbers.split(",")):
            print(trained_apart(number, asked.dataset, asked.data_dir), flush=True)
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    for one in SETTINGS:
        if not one.name.startswith(asked.rows):
            continue
        found = []
        for _ in range(asked.repetitions):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measured(one, asked.data_dir, pathlib.Path(folder) / "run"))
        medians = {
            name: statistics.median(each[name] for each in found)
            for name in found[0]
            if all(each[name] is not None for each in found)
        }
        kept = {**dataclasses.asdict(one), **medians, "repetitions": found}
        (asked.folder / f"{one.name}.json").write_text(json.dumps(kept, indent=2) + "\n")
        values = "  ".join(f"{name} {value:.4g}" for name, value in medians.items())
        print(f"{one.name}: {one.num_queries} {one.strategy} queries  {values}", flush=True)


if __name__ == "__main__":
    main()
