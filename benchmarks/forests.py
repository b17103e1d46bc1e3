"""The paper's Appendix C: `python benchmarks/forests.py --data_dir=DIR`, with UCI's files in DIR.

Prints, for `--dataset=adult` or diabetes on this machine: seconds to train 250 forests and to ask
them for votes on the whole test split; accuracies of teachers, of noisy labels, of students over
`--draws` draws of the noise (mean, lowest, highest) and of a forest on all private records without
privacy, each beside what a constant answer gets; balanced accuracy and AUC; and epsilon at delta
1e-5 by the paper's bound at moments 1 to 8 and by ours, data-dependent and therefore not to be
published for real data. The noise is drawn from seeds: nothing here is private.
"""

import argparse
import json
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from pate_tf.accounting import moments
from pate_tf.accounting.mechanisms import LaplaceNoisyMax
from pate_tf.aggregation.graph import VoteAggregation
from pate_tf.aggregation.noise import SeededNoise
from pate_tf.core.partition import random_partition
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples, Votes
from pate_tf.data import catalogue
from pate_tf.models.forest import NUM_TREES, RANDOM_FOREST
from pate_tf.teachers.kinds import Engine, Work, find_kind, load_ensemble, save_ensemble
from pate_tf.teachers.processes import num_cores
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.store import Finished, TeacherStore

NUM_TEACHERS, NUM_QUERIES, SCALE, DELTA = 250, 500, 20.0, 1e-5
DATA_DEPENDENT = {
    "paper's bound, moments 1 to 8, classic": ("paper", np.arange(1.0, 9.0), "classic"),
    "paper's bound, real moments": ("paper", moments.DEFAULT_MOMENTS, "improved"),
    "class-aware, two-sided": ("class_aware", moments.DEFAULT_MOMENTS, "improved"),
    "exact, two-sided": ("exact", moments.DEFAULT_MOMENTS, "improved"),
}


shown: dict[str, str] = {}


def show(name: str, value: str) -> None:
    shown[name] = value
    print(f"  {name:<44} {value}", flush=True)


def votes_of_teachers(private: PrivateExamples, public: PublicExamples) -> Votes:
    config = TeacherConfig(
        dataset=private.dataset,
        num_teachers=NUM_TEACHERS,
        model=RANDOM_FOREST,
        max_steps=1,
        batch_size=1,
        learning_rate=0.1,
        seed=0,
    )
    shares = random_partition(num_records=len(private), num_teachers=NUM_TEACHERS, seed=0)
    began = time.monotonic()
    kind = find_kind(config.model, config.dataset)
    work = Work(config=config, examples=private, partition=shares, encoder=None, engine=Engine())
    with tempfile.TemporaryDirectory() as folder:
        store = TeacherStore(pathlib.Path(folder) / "sensitive", {})
        store.save_all(kind.train(work, range(NUM_TEACHERS), store), lambda done: None)
        trained = time.monotonic()
        path = pathlib.Path(folder) / "sensitive" / "ensemble"
        save_ensemble(kind, path, config, Finished(path.parent, NUM_TEACHERS), None)
        size = sum(file.stat().st_size for file in path.iterdir())
        ensemble = load_ensemble(path)
        loaded = time.monotonic()
        votes = ensemble.votes(public.inputs)
    asked = time.monotonic()
    show("cores, and load before", f"{num_cores()}, {os.getloadavg()[0]:.1f}")
    show(f"train {NUM_TEACHERS} forests", f"{trained - began:.1f} s")
    show("save and load them", f"{loaded - trained:.2f} s, {size / 1e6:.0f} MB")
    show(f"votes on {len(public):,} inputs", f"{asked - loaded:.1f} s")
    show("in all", f"{asked - began:.1f} s")
    accuracies = (votes.labels == public.labels).mean(axis=1)
    show("a teacher", f"{accuracies.mean():.2%}")
    return votes


def scores(name: str, fitted: RandomForestClassifier, held_out: PublicExamples) -> float:
    probabilities = fitted.predict_proba(held_out.inputs)
    labels = fitted.classes_[probabilities.argmax(axis=1)]
    accuracy = float((labels == held_out.labels).mean())
    if name:
        balanced = balanced_accuracy_score(held_out.labels, labels)
        auc = roc_auc_score(held_out.labels, probabilities[:, 1])
        show(name, f"{accuracy:.2%}, balanced {balanced:.2%}, AUC {auc:.4f}")
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="adult", choices=catalogue.TABLES)
    parser.add_argument("--data_dir", type=pathlib.Path, required=True)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--output_dir", type=pathlib.Path, default="runs/benchmarks")
    arguments = parser.parse_args()

    private = catalogue.load_private(arguments.dataset, data_dir=arguments.data_dir)
    public = catalogue.load_public(arguments.dataset, data_dir=arguments.data_dir)
    split = public.split(public.dataset.pool_size)
    pool, held_out = split.pool, split.held_out
    print(f"\n{public.dataset.name}: {len(private):,} private, {len(held_out):,} held out")
    show("a constant answer, held out", f"{held_out.majority_share:.2%}")
    votes = votes_of_teachers(private, public)

    everything = RandomForestClassifier(NUM_TREES, random_state=0)
    scores("without privacy", everything.fit(private.inputs, private.labels), held_out)
    true_labels = split.pool_labels[:NUM_QUERIES]
    few = RandomForestClassifier(NUM_TREES, random_state=0)
    few.fit(pool.inputs[:NUM_QUERIES], true_labels)
    scores(f"{NUM_QUERIES} true labels", few, held_out)
    counts = votes.counts().values
    plurality = counts.argmax(axis=1)
    show("plurality, held out", f"{(plurality == public.labels)[-len(held_out) :].mean():.2%}")

    mechanism = LaplaceNoisyMax(gamma=1.0 / SCALE)
    aggregation = VoteAggregation(public.dataset.num_classes)
    asked = counts[:NUM_QUERIES]
    label_accuracies, student_accuracies = [], []
    for draw in range(arguments.draws):
        noise = mechanism.additive_noise(
            SeededNoise(draw), num_queries=NUM_QUERIES, num_classes=public.dataset.num_classes
        )
        labels = aggregation.label(asked, noise)
        student = RandomForestClassifier(NUM_TREES, random_state=draw)
        student.fit(pool.inputs[:NUM_QUERIES], labels)
        label_accuracies.append((labels == true_labels).mean())
        student_accuracies.append(scores("a student" if draw == 0 else "", student, held_out))
    for name, values in (("labels", label_accuracies), ("student", student_accuracies)):
        show(
            f"noisy {name}, {arguments.draws} draws",
            f"mean {np.mean(values):.2%}, from {min(values):.2%} to {max(values):.2%}",
        )

    epsilon, _ = mechanism.data_independent_epsilon(num_queries=NUM_QUERIES, delta=DELTA)
    show("epsilon, data-independent", f"{epsilon:.3f}")
    for name, (bound, orders, conversion) in DATA_DEPENDENT.items():
        alphas = moments.data_dependent_alphas(asked, mechanism, orders, bound=bound)
        epsilon, moment = moments.epsilon_from_alphas(alphas, orders, DELTA, conversion=conversion)
        show(f"epsilon, {name}", f"{epsilon:.3f} at moment {moment:.4g}")
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    path = arguments.output_dir / f"forests_{arguments.dataset}.json"
    path.write_text(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main()
