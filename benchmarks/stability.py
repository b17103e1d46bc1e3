"""How stable the least stable query is, with its neighbours and alone.

    python -m benchmarks.stability --teachers_dir=runs/mnist --dataset=mnist

A stability gate opens by the query whose label the fewest teachers could change. For several seeds
this prints that number, of queries asked alone and together with what looks like them. It reads
votes without noise: SENSITIVE, for data sets that are public anyway.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from pate_tf.accounting.mechanisms.stability_gate import stability_distances
from pate_tf.api.run_folder import ensemble_folder
from pate_tf.core.artifacts import RunDirectory
from pate_tf.core.public import Pool
from pate_tf.data import catalogue
from pate_tf.data.named_function import Named
from pate_tf.queries import propagation
from pate_tf.queries.labels import asked_inputs
from pate_tf.queries.strategies import clusters
from pate_tf.teachers.kinds import load_ensemble
from pate_tf.teachers.voters import StoredVotes, Voter

CHOOSE = {"medoids": clusters.choose_of_dense_clusters, "diverse": clusters.choose}


def fewest_to_change(
    teachers: Voter,
    pool: Pool,
    *,
    strategy: str,
    num_queries: int,
    num_neighbours: int,
    seed: int,
    representation: Named | None = None,
) -> int:
    """SENSITIVE: returns how many teachers the label of the least stable query takes to change."""
    options = {"representation": representation}
    queries = CHOOSE[strategy](pool, num_queries, seed, **options)
    nearest = propagation.nearest(pool, queries, num_neighbours, seed, **options)
    counts = teachers.group_counts(asked_inputs(pool, queries, nearest))
    return int(stability_distances(counts.values).min())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--teachers_dir", type=pathlib.Path, required=True)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--data_dir", type=pathlib.Path)
    parser.add_argument("--queries", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, propagation.NEIGHBOURS])
    parser.add_argument("--strategies", nargs="+", choices=CHOOSE, default=list(CHOOSE))
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args(arguments)
    public = catalogue.load_public(asked.dataset, data_dir=asked.data_dir)
    pool = public.split(public.dataset.pool_size).pool
    ensemble = load_ensemble(ensemble_folder(RunDirectory(asked.teachers_dir)))
    named = ensemble.config.representation
    teachers = StoredVotes(ensemble.votes(pool.inputs), pool)
    print(f"SENSITIVE: {ensemble.num_teachers} teachers of {asked.dataset}")
    print("| queries | neighbours | fewest teachers to change, a seed each |")
    print("|---|---|---|")
    for strategy in asked.strategies:
        for num_queries in asked.queries:
            for number in asked.neighbours:
                found = [
                    fewest_to_change(
                        teachers,
                        pool,
                        strategy=strategy,
                        num_queries=num_queries,
                        num_neighbours=number,
                        seed=seed,
                        representation=named if isinstance(named, str) else None,
                    )
                    for seed in range(asked.seeds)
                ]
                numbers = ", ".join(map(str, found))
                print(f"| {num_queries} {strategy} | {number} | {numbers} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
