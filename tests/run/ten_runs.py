"""Ten runs with seeded noise, each in a separate process, and the releases of each."""

import functools
import itertools
import json
import pathlib
import re
import runpy
import sys

import numpy as np
from script_processes import REPOSITORY, learn_little, start

MAIN = str(REPOSITORY / "pate_tf/cli/main.py")
SEED = 7
# Facts of a statement that name a date, a digest of floating-point weights, or a path.
UNSTABLE = ("created", "date", "digest", "run_name", "accuracy", "version", "ledger_head", "Verify")
DATE = re.compile(r"\d{4}-\d\d-\d\d(-\d+)?")


def seed_noise() -> None:
    """Makes all privacy noise of this process predictable: each draw depends on its law
    and number.
    """
    from pate_tf.release.noise import SeededNoise, SystemNoise

    for name in ("words", "laplace_integers", "gaussian_integers"):
        numbers = itertools.count(SEED)

        def draw(self, *values, name=name, numbers=numbers):
            return getattr(SeededNoise(next(numbers)), name)(*values)

        setattr(SystemNoise, name, draw)
    learn_little()


def command(*flags: str) -> None:
    """Runs `pate` in this process."""
    sys.argv = [MAIN, *flags]
    try:
        runpy.run_path(MAIN, run_name="__main__")
    except SystemExit as error:
        if error.code:
            raise


def write_table(name: str, number: int, seed: int, *, owners: bool = False) -> None:
    """Writes a file of two columns. The class follows from both, with some noise."""
    random = np.random.default_rng(seed)
    age, pressure = random.integers(18, 90, number), random.integers(80, 200, number)
    ill = np.where(age + pressure + random.normal(0, 10, number) > 195, "yes", "no")
    person = [f"p{index // 2}" for index in range(number)]
    rows = zip(*([person] if owners else []), age, pressure, ill, strict=True)
    names = [*(["person"] if owners else []), "age", "pressure", "ill"]
    lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
    pathlib.Path(name).write_text("\n".join(lines) + "\n")


def write_schema(*lines: str) -> None:
    columns = "[columns.age]\nlow = 18\nhigh = 90\n[columns.pressure]\nlow = 80\nhigh = 200\n"
    head = 'name = "visits"\nlabel = "ill"\nclasses = ["no", "yes"]\n'
    pathlib.Path("schema.toml").write_text(head + "\n".join(lines) + "\n" + columns)


def tables(*flags: str, pool: bool = True, owners: bool = False) -> None:
    """Runs `pate run` on synthetic files."""
    write_table("visits.csv", 3000, 1, owners=owners)
    write_table("public.csv", 600, 2)
    write_schema(*(['owner = "person"'] if owners else []))
    public = ["--public=public.csv"] if pool else []
    where = ["--private=visits.csv", "--schema=schema.toml", "--train_dir=run"]
    command("run", *where, *public, *flags)


def texts() -> None:
    """Runs `pate run` on short texts, with a pool."""
    random = np.random.default_rng(3)
    words = np.array(["fee", "court", "goal", "ball", "team", "judge", "law", "match"])
    is_sport = np.array([0, 0, 1, 1, 1, 0, 0, 1])
    for name, number in (("visits.csv", 2000), ("public.csv", 400)):
        topics = random.integers(0, 2, number)
        lines = ["text,topic"]
        for topic in topics:
            weights = np.where(is_sport == topic, 3.0, 1.0)
            chosen = random.choice(words, 6, p=weights / weights.sum())
            lines.append(f"{' '.join(chosen)},{'sport' if topic else 'law'}")
        pathlib.Path(name).write_text("\n".join(lines) + "\n")
    pathlib.Path("schema.toml").write_text(
        'name = "news"\nlabel = "topic"\nclasses = ["law", "sport"]\n[columns.text]\ntext = 512\n'
    )
    where = ["--private=visits.csv", "--schema=schema.toml", "--train_dir=run"]
    command("run", *where, "--public=public.csv", "--epsilon=2", "--delta=1e-6")


def pate_student() -> None:
    """Trains teachers of digits, and a student from their votes."""
    where = ["--dataset=digits", "--nb_teachers=20", "--train_dir=run"]
    command("teachers", *where, "--model=mlp", "--max_steps=30")
    chosen = ["--epsilon=8", "--delta=1e-5", "--accept_forecast", "--representation=raw"]
    command("student", *where, *chosen, "--max_steps=30")


def student_of_sums() -> None:
    """Runs `pate student` on feature sums of digits."""
    where = ["--dataset=digits", "--method=feature_sums", "--train_dir=run"]
    where += ["--representation=raw"]  # which learns nothing
    command("student", *where, "--epsilon=2", "--delta=1e-5", "--purpose=a test", "--max_steps=30")


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns private inputs with their labels, and public inputs."""
    random = np.random.default_rng(5)
    inputs = random.uniform(size=(2000, 4))
    return inputs, (inputs[:, 0] + inputs[:, 1] > 1).astype(int), random.uniform(size=(400, 4))


def fit_arrays() -> None:
    """Runs `pate_tf.fit` on arrays, with an estimate of the accuracy."""
    import pate_tf

    inputs, labels, public = arrays()
    data = pate_tf.Data.from_arrays(
        inputs, labels, public, num_classes=2, value_range=(0, 1), kind="tabular"
    )
    fitted = pate_tf.fit(
        data, method="feature_sums", epsilon=1.0, delta=1e-6, directory="run", evaluate_epsilon=0.5
    )
    fitted.labels.save("run/released")
    fitted.publish()


def classifier() -> None:
    """Fits `PateClassifier` by votes of forests, and publishes it."""
    import pate_tf

    inputs, labels, public = arrays()
    fitted = pate_tf.PateClassifier(
        epsilon=4.0,
        delta=1e-6,
        num_teachers=40,
        teacher="random_forest",
        student="random_forest",
        classes=[0, 1],
        value_range=(0, 1),
        directory="run",
        random_state=0,
    ).fit(inputs, labels, public)
    fitted.fitted_.labels.save("run/released")
    fitted.fitted_.publish()


def silos(kind: str) -> None:
    """Requests votes, or sums, from five silos."""
    import five_silos
    import silo_helpers

    import pate_tf

    folder = pathlib.Path("run").absolute()
    running, opened = five_silos.coordinator(folder, kind=kind)
    with running:
        if kind == "sums":
            pathlib.Path("released.json").write_text(json.dumps(five_silos.total(running).tolist()))
        else:
            pool = silo_helpers.pool(40)
            labels = running.label(pool, num_queries=20)
            labels.save(folder / "released")
            student = pate_tf.Student("random_forest").fit(pool, labels)
            student.publish(folder / "released")
    charges = [dict(map(str, pair) for pair in silo.account.charges.items()) for silo in opened]
    pathlib.Path("charges.json").write_text(str(sorted(map(str, charges))))


RUNS = {
    "table": functools.partial(tables, "--epsilon=1", "--delta=1e-6"),
    "table, votes": functools.partial(
        tables, "--epsilon=4", "--delta=1e-6", "--method=pate", "--nb_teachers=60"
    ),
    "table without a pool": functools.partial(tables, "--epsilon=1", "--delta=1e-6", pool=False),
    "owners": functools.partial(tables, "--epsilon=2", "--delta=1e-6", owners=True),
    "texts": texts,
    "images, votes": pate_student,
    "images, sums": student_of_sums,
    "arrays": fit_arrays,
    "classifier": classifier,
    "silos, votes": functools.partial(silos, "secret votes"),
    "silos, sums": functools.partial(silos, "sums"),
}


def _seeded(run) -> None:
    seed_noise()
    run()


def outcome(name: str, folder: pathlib.Path) -> dict[str, object]:
    """Runs one of `RUNS` in an empty folder; returns its releases and charges as JSON values."""
    ended = start(functools.partial(_seeded, RUNS[name]), folder=folder).wait()
    assert ended.code == 0, ended.err[-3000:]
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*.json")):
        if path.name in ("released.json", "charges.json"):
            found[path.name] = path.read_text()
    labels = folder / "run" / "released" / "labels.npz"
    if labels.exists():
        with np.load(labels) as archive:
            found |= {name: archive[name].tolist() for name in ("labels", "query_indices")}
            if "noisy_sums" in archive:  # in units of 2**-20; the last bits depend on the machine
                found["first sums"] = (archive["noisy_sums"].ravel()[:100] / 2**20).tolist()
    statement = folder / "run" / "released" / "privacy_statement.json"
    if statement.exists():
        found["statement"] = _stable(json.loads(statement.read_text()))
    return found


def _stable(value: object) -> object:
    """Returns JSON values without dates, digests, paths and measured accuracies."""
    if isinstance(value, dict):
        stable = {DATE.sub("DATE", name): _stable(each) for name, each in value.items()}
        return {
            name: each
            for name, each in stable.items()
            if not any(word in name for word in UNSTABLE)
        }
    if isinstance(value, list):
        return [_stable(each) for each in value]
    return DATE.sub("DATE", value) if isinstance(value, str) else value
