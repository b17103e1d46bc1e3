"""Speed against baselines in the same run: `python -m benchmarks.speed [PART ...]`.

- `accounting`: bounds, exact moments and smooth sensitivity against plain loops, timed on some
  queries and scaled.
- `analysis`: `analysis.py --release=sanitised` on 1,000 queries of 250 teachers, from a cold start.
- `ensemble`: teachers trained, stored and queried, against one process and one trace per teacher,
  whose steps are extrapolated.
- `compiled`: teachers of a Keras model that the user compiled, against the same model not compiled.
- `ledger`: queries charged and labeled in batches of 1,000; seconds to verify on opening, size.
- `serving`: p50 and p99 of an exported student's answers, against the Keras model.
- `shared`: a round of shared training against a loop of Keras' `fit`.
- `silos`: a total of five silos' feature sums through four aggregators, in one process.

`--quick` shows on the embedded digits that a part runs.
"""

import argparse
import functools
import os
import pathlib
import resource
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import pate_tf
from benchmarks.harness import data_dir_of, markdown_table, separate_registry
from pate_tf.accounting.mechanisms import GaussianNoisyMax, LaplaceNoisyMax
from pate_tf.accounting.moments import DEFAULT_MOMENTS, data_dependent_alphas
from pate_tf.core.checks import IntArray

ROOT = pathlib.Path(__file__).absolute().parents[1]
GAMMA, NUM_TEACHERS, NUM_CLASSES = 0.05, 250, 10
NAIVE_STEPS, NAIVE_MEASURED = 3_000, 100
NAIVE_TEACHER = """
import sys, time, keras, numpy as np
from pate_tf.models.architectures import paper_mnist
from pate_tf.data.datasets import MNIST
with np.load(sys.argv[1]) as arrays:
    inputs, labels = arrays["inputs"].astype("float32"), arrays["labels"]
steps = int(sys.argv[2])
order = np.resize(np.arange(len(labels)), steps * 128)
model = paper_mnist(MNIST)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.train_on_batch(inputs[order[:128]], labels[order[:128]])
began = time.monotonic()
for batch in order.reshape(steps, 128):
    model.train_on_batch(inputs[batch], labels[batch])
print("seconds", time.monotonic() - began)
model.export(sys.argv[3], verbose=False)
"""


def seconds_of(call: Callable[[], object]) -> float:
    """Returns the wall time of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def row(name: str, seconds: float, baseline: float | None = None, **details: Any) -> dict[str, str]:
    """Returns a row of the table: seconds, baseline seconds, their ratio, further numbers."""
    cells = {"": name, "seconds": f"{seconds:.4g}"}
    if baseline is not None:
        cells |= {"baseline": f"{baseline:.4g}", "ratio": f"{baseline / seconds:.3g}"}
    shown = (f"{name.replace('_', ' ')} {value:,.6g}" for name, value in details.items())
    return {**cells, "besides": ", ".join(shown)}


def histograms(num_queries: int, *, distinct: bool = True) -> IntArray:
    """Returns votes from weak to strong consensus, int64 `[num_queries, NUM_CLASSES]`."""
    random = np.random.default_rng(0)
    num_drawn = 3 * num_queries if distinct else num_queries
    first = random.uniform(0.3, 0.95, num_drawn)
    others = random.dirichlet(np.ones(NUM_CLASSES - 1), num_drawn) * (1.0 - first)[:, None]
    counts = random.multinomial(NUM_TEACHERS, np.column_stack([first, others]))
    if distinct:
        _, places = np.unique(-np.sort(-counts, axis=1), axis=0, return_index=True)
        counts = counts[np.sort(places)[:num_queries]]
    return counts


def accounting(is_quick: bool) -> Iterator[dict[str, str]]:
    """Times the accounting against the plain loops of the tests."""
    sys.path[:0] = [str(ROOT / "tests" / "accounting")]
    import reference

    from pate_tf.analysis.smooth_sensitivity import smooth_sensitivity

    laplace = LaplaceNoisyMax(gamma=GAMMA)
    for bound, number, sample, moments in (
        ("paper", 1_000_000, 200, DEFAULT_MOMENTS),
        ("two_sided", 1_000_000, 200, DEFAULT_MOMENTS),
        ("class_aware", 10_000, 20, np.geomspace(0.05, 512.0, 64)),
    ):
        counts = histograms(number // 1_000 if is_quick else number, distinct=number < 10**6)
        spent = seconds_of(
            lambda bound=bound, counts=counts, moments=moments: data_dependent_alphas(
                counts, laplace, moments, bound=bound
            )
        )
        some = [tuple(map(int, votes)) for votes in counts[:sample]]
        plain = seconds_of(
            lambda bound=bound, some=some, moments=moments: [
                reference.plain_costs(bound, votes, GAMMA, moments.tolist()) for votes in some
            ]
        )
        name = f"{bound}, {len(counts):,} queries x {len(moments)} moments"
        yield row(name, spent, plain * len(counts) / len(some))
    counts = histograms(100 if is_quick else 10_000)

    def plain_exact(votes: tuple[int, ...]) -> None:
        law = np.array(reference.lowest_index_law(votes, GAMMA), float)
        for neighbor in reference.neighbours(votes):
            other = np.array(reference.lowest_index_law(neighbor, GAMMA), float)
            for moment in DEFAULT_MOMENTS:
                (law * (law / other) ** moment).sum()
                (other * (other / law) ** moment).sum()

    with np.errstate(over="ignore"):
        plain = seconds_of(lambda: [plain_exact(tuple(map(int, votes))) for votes in counts[:2]])
    for mechanism in (laplace, GaussianNoisyMax(sigma=40.0)):
        spent = seconds_of(
            lambda mechanism=mechanism: data_dependent_alphas(
                counts, mechanism, DEFAULT_MOMENTS, bound="exact"
            )
        )
        name = f"exact moments, {mechanism.name}, {len(counts):,} queries"
        yield row(name, spent, plain * len(counts) / 2 if mechanism is laplace else None)
    counts = histograms(100 if is_quick else 1_000)
    spent = seconds_of(
        lambda: smooth_sensitivity(counts, laplace, moment=8.0, beta=0.02, bound="paper")
    )
    yield row(f"smooth sensitivity, {len(counts):,} queries", spent)


def analysis(is_quick: bool) -> Iterator[dict[str, str]]:
    """Times the command from a cold start, with the draw of the release and without."""
    labels = np.random.default_rng(0).integers(0, 10, (NUM_TEACHERS, 100 if is_quick else 1_000))
    labels[: NUM_TEACHERS * 4 // 5] = np.arange(labels.shape[1]) % 10
    with separate_registry() as folder:
        np.save(folder / "labels.npy", labels)
        command = [sys.executable, str(ROOT / "analysis.py"), "--release=sanitised"]
        command += [f"--counts_file={folder}/labels.npy", f"--output_dir={folder}/out"]
        command += [f"--nb_teachers={NUM_TEACHERS}"]
        run = functools.partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
        for name in ("first run, which draws the release", "again"):
            yield row(f"analysis.py: {name}", seconds_of(run))


def ensemble(is_quick: bool) -> Iterator[dict[str, str]]:
    """Times teachers of 240 images, 150 steps each, 9,000 votes."""
    dataset, number = ("digits", 5) if is_quick else ("mnist", NUM_TEACHERS)
    data = pate_tf.Data.load(dataset, data_dir=data_dir_of(dataset, None))
    with separate_registry() as folder:
        teachers = pate_tf.Teachers("cnn", num_teachers=number, steps=150, directory=folder / "run")
        training = seconds_of(lambda: teachers.fit(data.private))
        voting = seconds_of(lambda: teachers.votes(data.pool.inputs))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        baseline = None
        if not is_quick:
            inputs, labels = data.private.inputs[:240], data.private.labels[:240]
            np.savez(folder / "records.npz", inputs=inputs, labels=labels)
            command = [sys.executable, "-c", NAIVE_TEACHER, str(folder / "records.npz")]
            began = time.monotonic()
            printed = subprocess.run(
                [*command, str(NAIVE_MEASURED), str(folder / "naive")],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            whole = time.monotonic() - began
            stepping = float(printed.rsplit("seconds", 1)[1])
            baseline = (whole + stepping * (NAIVE_STEPS / NAIVE_MEASURED - 1)) * number
    yield row(
        f"{number} teachers trained, stored and asked",
        training + voting,
        baseline,
        training=training,
        mean_accuracy=teachers.accuracy(data.held_out.inputs, data.held_out.labels),
        peak_MiB=peak,
    )


def compiled(is_quick: bool) -> Iterator[dict[str, str]]:
    """Times teachers of the digits, not compiled and compiled."""
    import keras

    def network(dataset: pate_tf.Dataset) -> keras.Model:
        return keras.Sequential(
            [
                keras.Input(dataset.input_shape),
                keras.layers.Rescaling(1 / 16),
                keras.layers.Flatten(),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(dataset.num_classes),
            ]
        )

    def compiled_network(dataset: pate_tf.Dataset) -> keras.Model:
        model = network(dataset)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    data, number = pate_tf.Data.load("digits"), 3 if is_quick else 50
    spent = []
    for net in (network, compiled_network):
        with separate_registry() as folder:
            teachers = pate_tf.Teachers(
                net, num_teachers=number, steps=150, directory=folder / "run"
            )
            spent.append(seconds_of(lambda teachers=teachers: teachers.fit(data.private)))
    yield row(f"{number} teachers of 150 steps; baseline: compiled", *spent)


def label_through_ledger(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Charges and labels queries in batches of 1,000; returns seconds and megabytes."""
    from pate_tf.core.sensitive import VoteCounts
    from pate_tf.ledger import Ledger
    from pate_tf.release.noise import SystemNoise
    from pate_tf.release.votes import release_votes

    def vote(inputs: Any) -> VoteCounts:
        counts = np.full((len(inputs), NUM_CLASSES), 10)
        first = inputs[:, 0].astype(int) % NUM_CLASSES
        counts[np.arange(len(inputs)), first] += NUM_TEACHERS - 10 * NUM_CLASSES
        return VoteCounts(counts)

    with Ledger.open(folder, ensemble_digest="00" * 32, delta=1e-5) as opened:
        began = time.perf_counter()
        for start in range(0, number, 1_000):
            numbers = np.arange(start, min(start + 1_000, number), dtype=float)
            release_votes(
                np.repeat(numbers[:, np.newaxis], 64, axis=1),
                LaplaceNoisyMax(gamma=GAMMA),
                voter=vote,
                ledger=opened,
                noise=SystemNoise(),
                num_classes=NUM_CLASSES,
            )
        labeled = time.perf_counter()
    with Ledger.read(folder):
        verified = time.perf_counter()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"label": labeled - began, "verify on opening": verified - labeled, "MB": size / 1e6}


def ledger(is_quick: bool) -> Iterator[dict[str, str]]:
    """Times a million queries."""
    number = 2_000 if is_quick else 1_000_000
    with separate_registry() as folder:
        result = label_through_ledger(number, folder / "run" / "sensitive")
    yield row(f"{number:,} queries charged and labeled", result.pop("label"), **result)


def serving(is_quick: bool) -> Iterator[dict[str, str]]:
    """Times an exported student against its Keras model, request by request in turn."""
    import tensorflow as tf

    from pate_tf.models import architectures
    from pate_tf.serving.export import export_student, student_digest

    dataset = "digits" if is_quick else "mnist"
    data = pate_tf.Data.load(dataset, data_dir=data_dir_of(dataset, None))
    model = architectures.build("cnn", data.dataset, seed=1)
    with separate_registry() as folder:
        statement = {"student_digest": student_digest(model)}
        exported = export_student(model, data.dataset, folder, statement)
        serve = tf.saved_model.load(str(exported)).signatures["serving_default"]
        for batch in (1, 64):
            inputs = tf.constant(data.pool.inputs[:batch])
            answers: tuple[Callable[[], Any], ...] = (
                lambda inputs=inputs: serve(**{data.dataset.input_name: inputs})[
                    "probabilities"
                ].numpy(),
                lambda inputs=inputs: tf.nn.softmax(
                    model(tf.cast(inputs, tf.float32), training=False)
                ).numpy(),
            )
            times = np.array(
                [
                    [seconds_of(answer) for answer in answers]
                    for _ in range(40 if is_quick else 2_020)
                ]
            )[20:]
            (served, plain), (tail, _) = np.percentile(times, [50, 99], axis=0)
            yield row(f"student, batch {batch}, p50; baseline: Keras", served, plain, p99=tail)


def shared(is_quick: bool) -> Iterator[dict[str, str]]:
    """Times an exported student against its Keras model, request by request in turn."""
    import keras

    from pate_tf.core.sensitive import PrivateExamples
    from pate_tf.selective_sgd import local_training as models
    from pate_tf.selective_sgd.local_training import FlatView, Participants, SharedTraining, largest
    from pate_tf.selective_sgd.server import ParameterServer
    from pate_tf.selective_sgd.training_settings import TrainingSettings

    dataset, number, records = ("digits", 3, 50) if is_quick else ("mnist", 30, 600)
    private = pate_tf.Data.load(dataset, data_dir=data_dir_of(dataset, None)).private
    used = slice(number * records)
    private = PrivateExamples(private.dataset, private.inputs[used], private.labels[used])
    settings = TrainingSettings(num_participants=number, rounds=4)
    shards = models.private_shards(private, number, seed=0)
    networks = [models.build("cnn", private.dataset, seed=0) for _ in range(2)]
    participants = Participants(settings, networks[0], dict(enumerate(shards)))
    server = ParameterServer(settings, participants.view.parameters())
    engine, plain = SharedTraining(participants, server), FlatView(networks[1])
    plain.model.compile(
        keras.optimizers.SGD(settings.learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    parameters = plain.parameters()

    def plain_round() -> None:
        for shard in shards:
            model = plain.assign(parameters)
            model.fit(shard.inputs, shard.labels, batch_size=settings.batch_size, verbose=0)
            change = plain.parameters() - parameters
            indices = largest(change, settings.num_uploaded(len(parameters)))
            parameters[indices] += change[indices]

    spent = [
        [seconds_of(engine.run_round), seconds_of(plain_round)] for _ in range(2 if is_quick else 4)
    ]
    medians = np.median(spent[1:], axis=0)  # the first round traces
    yield row(f"a round of {number} participants; baseline: Keras' fit", *medians)


def silos(is_quick: bool) -> Iterator[dict[str, str]]:
    """Times five silos and four aggregators in one process that open a total of 11,530 numbers."""
    from pate_tf.accounting.local import SecureFeatureSums
    from pate_tf.core.dataset import Dataset
    from pate_tf.core.public import Pool
    from pate_tf.net.wire_values import encode
    from pate_tf.silos import Asking, Coordinator, Member, Policy, Silo, SiloRoster, SiloSums
    from pate_tf.silos.aggregator import Aggregator
    from pate_tf.silos.protocol import Keys

    num_features = 20 if is_quick else 1_152
    encoder = types.SimpleNamespace(digest="synthetic", num_features=num_features)
    release = SecureFeatureSums.for_epsilon(
        0.1,
        delta=1e-5,
        num_features=num_features,
        least_silos=4,
        colluding=1,
        num_parties=4,
        threshold=1,
    )
    dataset = Dataset(
        name="synthetic",
        kind="tabular",
        input_shape=(2,),
        value_range=(0.0, 1.0),
        num_classes=NUM_CLASSES,
        pool_size=10,
    )
    names = [f"silo-{number}" for number in range(5)]
    with separate_registry() as folder:
        keys = {name: Keys(name) for name in names}
        of_aggregators = [Keys(f"aggregator-{number}") for number in range(4)]
        aggregators = [Aggregator(each, folder / each.identity.name) for each in of_aggregators]
        roster = SiloRoster(
            run="benchmark",
            delta=1e-6,
            members=tuple(Member(name=name, identity=keys[name].identity) for name in names),
            aggregators=tuple(each.identity for each in of_aggregators),
        )
        sums = np.full((num_features + 1, NUM_CLASSES), 10**9)
        members = [
            Silo(
                Policy(silo=name, epsilon_budget=1e9, delta=1e-6, allowed=(release.name,)),
                SiloSums(values=sums, encoder_digest=encoder.digest, num_records=10**6),
                folder=folder / name,
                roster=roster,
                keys=keys[name],
            )
            for name in names
        ]
        with Coordinator(
            roster,
            silos=members,
            folder=folder / "coordinator",
            asking=Asking(mechanism=release),
            aggregators=[aggregator.answer for aggregator in aggregators],
        ) as coordinator:
            public = Pool(dataset, np.zeros((10, 2), np.float32))
            spent = seconds_of(lambda: coordinator.open_total(public, encoder))
            size = len(encode(coordinator.journal.rounds[-1].replies[names[0]]))
    yield row("secure total of five silos", spent, bytes_from_a_silo=float(size))


PARTS: Mapping[str, Callable[[bool], Iterator[dict[str, str]]]] = {
    part.__name__: part
    for part in (accounting, analysis, ensemble, compiled, ledger, serving, shared, silos)
}


def main() -> None:
    """Prints the table of each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true")
    flags = parser.parse_args()
    for name in flags.parts or PARTS:
        print(f"\n{name}\n\n{markdown_table(list(PARTS[name](flags.quick)))}", flush=True)


if __name__ == "__main__":
    main()
