"""Audits of all mechanisms at the README's settings, power, canaries, membership inference.

`python -m benchmarks.audit --seconds=40` takes about twenty minutes of processor time. `--publish`
puts what `--parts` measured into docs/notes/audit_results.md. Data are the embedded digits.
"""

import argparse
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression

import pate_tf
from benchmarks.paper.membership import Attacked, canaries_show
from pate_tf.accounting.charge import Charge
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import RandomisedResponse, SecureFeatureSums, TruncatedGeometric
from pate_tf.accounting.local.base import LocalRandomiser
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianFeatureSums,
    GaussianHistogram,
    GaussianNoisyMax,
    LaplaceClusterCounts,
    LaplaceNoisyMax,
    Mechanism,
    PermuteAndFlip,
    StabilityGate,
)
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.aggregation.feature_sums import sums_by_class
from pate_tf.aggregation.noise import SystemNoise
from pate_tf.audit import mechanism as audits
from pate_tf.audit import statistics
from pate_tf.audit.statistics import rate_at_false_positives
from pate_tf.models.encoder import record_vectors
from pate_tf.selective_sgd.settings import Privacy, Settings

DELTA = 1e-5
DOCS = pathlib.Path(__file__).parents[1] / "docs" / "notes"
PAGE, PICTURE = DOCS / "audit_results.md", DOCS / "pictures" / "audit.png"
RESULTS = DOCS / "audit_results.json"
ERRORS = (0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02)  # of the noise, too small
SHADOWS = 64
EPSILONS = (1.0,)  # of the students that are attacked

Rows = list[dict[str, Any]]


def mechanisms() -> list[Mechanism]:
    """Returns all mechanisms at the README's settings; sums and gates at an epsilon of 1."""
    target = Target(epsilon=1.0, delta=DELTA, num_queries=1)
    return [
        LaplaceNoisyMax(scale=20.0),
        PermuteAndFlip(scale=20.0),
        ExponentialMechanism(scale=20.0),
        GaussianNoisyMax(sigma=40.0),
        GaussianHistogram(sigma=40.0),
        ConfidentGaussianNoisyMax(threshold=200.0, sigma_threshold=150.0, sigma=40.0),
        StabilityGate(epsilon=1.0, delta=DELTA / 3.0),
        target.least_noise(GaussianFeatureSums.of_scale),
        LaplaceClusterCounts(scale=2.0, num_clusters=20),
    ]


def bounds(seconds: float) -> Rows:
    """Audits every mechanism for about so many seconds."""
    rows = []
    for one in mechanisms():
        found = audits.audit_mechanism(one, delta=DELTA, seconds=seconds)
        rows.append(found.to_dict())
        print(f"{found.summary}: {found.outcome}, {found.lower_bound:.3g} of {found.claimed:.3g}")
    return rows


def power(seconds: float) -> Rows:
    """Finds the smallest error that is caught in about so many seconds each, by bisection."""
    rows = []
    for one in mechanisms():
        with tempfile.TemporaryDirectory() as name, audits.own_registry(pathlib.Path(name)):
            releases = audits.Releases(one, DELTA, pathlib.Path(name))
            if releases.is_batched:  # what a gate draws has no scale
                continue
            deltas = (DELTA, *audits.DELTAS)
            pairs = audits.neighbouring_pairs(one)
            pair = audits.most_telling_pair(releases, pairs, deltas, releases.claims(1, deltas))
            for probe in (200, 10_000):
                began = time.monotonic()
                releases.draw(pair, probe, progress=lambda done: None)
                each = (time.monotonic() - began) / probe
            number = max(int(seconds / each), 4 * audits.FEWEST)
            smallest, low, high = None, 0, len(ERRORS)
            while low < high:
                middle = (low + high) // 2
                if audits.is_caught(releases, pair, number, deltas, 1.0 - ERRORS[middle]):
                    smallest, low = ERRORS[middle], middle + 1
                else:
                    high = middle
        rows.append({"mechanism": one.summary(), "error": smallest, "draws": number})
        print(f"{one.summary()}: an error of {smallest} is caught by {number:,} draws")
    return rows


# What silos answer, and the total that they open.


def silos(seconds: float) -> Rows:
    """Audits the votes of a silo, and sums of five silos of which one leaves its noise out."""
    sums = SecureFeatureSums.for_epsilon(
        1.0,
        delta=DELTA,
        num_features=1_152,
        least_silos=5,
        colluding=1,
        num_parties=4,
        threshold=1,
    )
    rows = []
    for charge in (
        RandomisedResponse(num_classes=10, epsilon=1.0),
        TruncatedGeometric(num_classes=10, epsilon=1.0),
        sums,
    ):
        began = time.monotonic()
        found: list[list[npt.NDArray[np.float64]]] = [[], []]
        while not found[0] or time.monotonic() - began < seconds:
            noise = audits.AuditNoise(num_queries=audits.CHUNK)
            for place in (0, 1):
                found[place].append(_answers(charge, place, noise))
                noise.replay()
        first, second = (np.concatenate(one) for one in found)
        least, claimed = _counted(first, second, charge.composed_epsilon(1, delta=DELTA))
        rows.append({"what": charge.summary(), "claimed": claimed, "found": least})
        rows[-1]["draws"] = len(first)
        print(f"{charge.summary()}: at least {least:.3g} of {claimed:.3g}")
    return rows


def _answers(charge: Charge, place: int, noise: audits.AuditNoise) -> npt.NDArray[np.float64]:
    """Returns of answers to one of two votes, or of totals of two neighbours, what tells them."""
    if isinstance(charge, LocalRandomiser):
        last = charge.num_classes - 1
        answers = charge.draw(np.full(audits.CHUNK, place * last), noise)
        laws = charge.channel()
        return np.asarray(np.log(laws[0, answers] / laws[last, answers]))
    if not isinstance(charge, SecureFeatureSums):
        raise TypeError(charge.name)
    shares = [
        noise.gaussian_integers(charge.share_scale, audits.CHUNK) for _ in range(charge.num_honest)
    ]
    total = np.asarray(np.sum(shares, axis=0), np.float64) / LATTICE
    return np.asarray(total + (1.0, -1.0)[place])


def _counted(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], claimed: float
) -> tuple[float, float]:
    """Returns the lower bound by an event that is chosen on a quarter of the draws, and a claim."""
    middle = int(audits.CHOOSING * len(first))
    (promise,) = statistics.best_events(
        first[:middle], second[:middle], [(claimed, DELTA)], num_counted=len(first) - middle
    )
    event = promise.event
    counts = event.counts(first[middle:], second[middle:])
    return statistics.epsilon_lower_bound(counts, delta=DELTA, stake=event.stake), claimed


# Membership inference on students: likelihood ratios from shadow runs.


def membership(seconds: float) -> Rows:
    """Attacks students of noisy sums, of sums without noise, and a model of the records."""
    del seconds
    data = pate_tf.datasets.load("digits")
    private, pool = data.private, data.pool
    records = _vectors(private.inputs)
    public, labels = _vectors(pool.inputs), np.asarray(private.labels)
    rows = []
    for name, epsilon in (
        ("a model of the records themselves", None),
        ("student of exact sums", float("inf")),
        *((f"student of noisy sums, epsilon {one:g}", one) for one in EPSILONS),
    ):
        generator = np.random.default_rng(11)
        is_in = generator.random((SHADOWS, len(labels))) < 0.5
        scores = np.stack([_scores(records, labels, public, own, epsilon) for own in is_in])
        members, others = _ratios(scores, is_in)
        rate = rate_at_false_positives(members, others, 1e-3)
        order = np.argsort(np.concatenate([members, others]))
        ranks = np.empty(len(order))
        ranks[order] = np.arange(len(order))
        auc = (ranks[: len(members)].mean() - (len(members) - 1) / 2) / len(others)
        rows.append({"what": name, "epsilon": epsilon, "tpr": rate, "auc": float(auc)})
        print(f"{name}: TPR {rate:.2%} at FPR .1 %, AUC {auc:.3f}")
    return rows


def _vectors(inputs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    flat = np.asarray(inputs, np.float32).reshape(len(inputs), -1)
    return record_vectors(flat, None)


def _scores(
    records: npt.NDArray[np.float64],
    labels: npt.NDArray[np.int64],
    public: npt.NDArray[np.float64],
    own: npt.NDArray[np.bool_],
    epsilon: float | None,
) -> npt.NDArray[np.float64]:
    """Trains on some of the records; returns the log-odds of each record's own label."""
    if epsilon is None:
        model = LogisticRegression(C=100.0, max_iter=200).fit(records[own], labels[own])
    else:
        sums = sums_by_class(records[own], labels[own], num_classes=10)
        if np.isfinite(epsilon):
            target = Target(epsilon=epsilon, delta=DELTA, num_queries=1)
            mechanism = target.least_noise(GaussianFeatureSums.of_scale)
            sums = mechanism.draw_sums(sums, SystemNoise())
        values = sums / LATTICE
        given = (public @ values / np.maximum(np.linalg.norm(values, axis=0), 1e-9)).argmax(axis=1)
        if len(np.unique(given)) < 2:
            return np.zeros(len(labels))
        model = LogisticRegression(C=100.0, max_iter=200).fit(public, given)
    chance = np.full((len(labels), 10), 1e-9)
    chance[:, model.classes_] = model.predict_proba(records)
    own_chance = np.clip(chance[np.arange(len(labels)), labels], 1e-9, 1 - 1e-9)
    return np.asarray(np.log(own_chance / (1.0 - own_chance)))


def _ratios(
    scores: npt.NDArray[np.float64], is_in: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns log likelihood ratios of members and of others; each run against all the others.

    (Carlini et al. 2022, arXiv 2112.03570, with Gaussians of a common variance.)
    """
    members, others = [], []
    for run in range(len(scores)):
        rest = np.arange(len(scores)) != run
        with_it = np.where(is_in[rest], scores[rest], np.nan)
        without = np.where(is_in[rest], np.nan, scores[rest])
        means = np.nanmean(with_it, axis=0), np.nanmean(without, axis=0)
        variance = (np.nanvar(with_it, axis=0) + np.nanvar(without, axis=0)) / 2.0 + 1e-6
        ratio = (means[0] - means[1]) * (scores[run] - (means[0] + means[1]) / 2.0) / variance
        members.append(ratio[is_in[run]])
        others.append(ratio[~is_in[run]])
    return np.concatenate(members), np.concatenate(others)


# Canaries in whole runs.


def shared(seconds: float) -> Rows:
    """Puts canaries into shared training by record."""
    del seconds
    data = pate_tf.datasets.load("digits")
    rows = []
    with tempfile.TemporaryDirectory() as name, audits.own_registry(pathlib.Path(name)):
        root = pathlib.Path(name)
        for epsilon in (1.0, 8.0):
            privacy = Privacy(
                kind="record", target_epsilon=epsilon, sampling_rate=1.0, momentum=0.0
            )
            settings = Settings(
                num_participants=2, rounds=3, upload=1.0, protocol="synchronous", learning_rate=1.0
            )
            run = Attacked(
                settings=settings,
                privacy=privacy,
                records_each=300,
                noise=SystemNoise(),
                folder=str(root / f"shared_{epsilon:g}"),
            )
            found = canaries_show(data.private, run)
            rows.append({"what": "shared training by record", "claimed": epsilon, "found": found})
            print(f"shared training, epsilon {epsilon:g}: at least {found:.3g}")
    return rows


# The page.


def page(found: Mapping[str, Any]) -> str:
    """Returns the page of what was measured so far, a section for each part."""
    lines = [
        "# What audits found",
        "",
        "Lower bounds have confidence 99.9 %; [audits](../how-to/audit.md) says what they mean.",
        "",
    ]
    for name, part in found.items():
        lines += [
            f"## {PARTS[name][0]}",
            "",
            f"{PARTS[name][1]} Made by `{part['command']}` in {part['processor_seconds']:.0f} s of "
            f"processor time.",
            "",
            *_table(*_cells(name, part["rows"])),
        ]
        if name == "bounds":
            lines += ["![Claimed and found epsilon by delta](pictures/audit.png)", ""]
    return "\n".join(lines).rstrip() + "\n"


def _cells(name: str, rows: Rows) -> tuple[Sequence[str], Iterator[Sequence[str]]]:
    """Returns head and rows of a part's table."""
    if name == "bounds":
        return ("mechanism", "queries", "claimed", "at least", "share", "draws", "half noise"), (
            (
                f"`{one['summary']}`",
                f"{one['group']:,}",
                f"{one['claimed']:.3g}",
                f"{one['lower_bound']:.3g}",
                f"{one['lower_bound'] / one['claimed']:.0%}",
                f"{one['num_draws']:,}",
                f"caught by {one['control_draws']:,} draws"
                if one["control_caught"]
                else f"not caught by {one['control_draws']:,} draws",
            )
            for one in rows
        )
    if name == "power":
        return ("mechanism", "error caught", "draws"), (
            (
                f"`{one['mechanism']}`",
                "none of them" if one["error"] is None else f"{100 * one['error']:g} %",
                f"{one['draws']:,}",
            )
            for one in rows
        )
    if name == "membership":
        return ("model", "true positives at .1 % false ones", "AUC"), (
            (one["what"], f"{one['tpr']:.2%}", f"{one['auc']:.3f}") for one in rows
        )
    if name == "silos":
        return ("what is released", "claimed", "at least", "draws"), (
            (
                f"`{one['what']}`",
                f"{one['claimed']:.3g}",
                f"{one['found']:.3g}",
                f"{one['draws']:,}",
            )
            for one in rows
        )
    return ("run", "claimed epsilon", "at least"), (
        (one["what"], f"{one['claimed']:g}", f"{one['found']:.3g}") for one in rows
    )


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> list[str]:
    shown = [head, ["---"] * len(head), *rows]
    return [*("| " + " | ".join(row) + " |" for row in shown), ""]


def picture(rows: Rows, path: pathlib.Path) -> None:
    """Draws claims and bounds as functions of delta, a panel for each mechanism."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 8.0), dpi=110, layout="constrained")
    for axes, one in zip(figure.subplots(3, 3).ravel(), rows, strict=True):
        deltas = [point["delta"] for point in one["curve"]]
        for name, label, style in (
            ("claimed", "claimed", {"color": "#0072B2"}),
            ("lower_bound", "at least", {"color": "#D55E00", "linestyle": "--"}),
        ):
            axes.semilogx(deltas, [point[name] for point in one["curve"]], label=label, **style)
        axes.set_title(one["mechanism"]["name"], fontsize=9)
        axes.set_xlabel("delta", fontsize=8)
        axes.set_ylabel("epsilon", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


# By name: title, what is measured, and what measures it in about so many seconds for each row.
PARTS: Final[Mapping[str, tuple[str, str, Callable[[float], Rows]]]] = {
    "bounds": (
        "Mechanisms",
        f"At delta {DELTA:g}, for the number of queries whose bound is the largest share of its "
        "claim. What is claimed of labels holds for noisy counts, too, of which labels are a part.",
        bounds,
    ),
    "power": (
        "Power",
        f"The smallest of {', '.join(f'{100 * one:g}' for one in ERRORS)} % by which the noise is "
        "too small that was caught by so many draws; more draws find smaller ones. Where the table "
        "above shows a share of the claim, errors up to about the rest of it are within the claim.",
        power,
    ),
    "silos": (
        "Silos",
        f"One answer of a silo, or one total of five silos of which one colludes and leaves its "
        f"noise out, at delta {DELTA:g}.",
        silos,
    ),
    "membership": (
        "Membership inference on students",
        f"Likelihood ratios (Carlini et al. 2022) with {SHADOWS} shadow runs on the digits: who of "
        "1,200 records is among the half that a run learned from. Chance finds .1 %.",
        membership,
    ),
    "shared": (
        "Shared training by record",
        "A third of one participant's 300 records are canaries, two participants, three rounds, "
        "all records in every round, no momentum; confidence 95 % from one run. A bound of 0 says "
        "that these runs have no power here.",
        shared,
    ),
}


def main() -> None:
    """Reads the flags, measures, prints; publishes if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="which, with commas between")
    parser.add_argument("--seconds", type=float, default=40.0, help="for each mechanism")
    parser.add_argument("--publish", action="store_true", help=f"write {PAGE.name} and its picture")
    asked = parser.parse_args()
    for name in asked.parts.split(","):
        processor = time.process_time()
        rows = PARTS[name][2](asked.seconds)
        part = {
            "rows": rows,
            "command": f"python -m benchmarks.audit --parts={name} --seconds={asked.seconds:g}",
            "processor_seconds": time.process_time() - processor,
        }
        print(page({name: part}))
        if asked.publish:
            known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            known[name] = part
            found = {one: known[one] for one in PARTS if one in known}
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
            PAGE.write_text(page(found))
            if name == "bounds":
                picture(rows, PICTURE)


if __name__ == "__main__":
    main()
