"""How large the experiments are: as the paper's, or small enough to show that everything runs."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Public sizes.

    Attributes:
        name: "full" or "quick".
        images: image data sets.
        tables: data sets of forests.
        num_teachers: of the main ensemble.
        ensembles: numbers of teachers compared in figures 2 and 3.
        distilled_teachers: of the ensemble of figure 5.
        table_teachers: of the forests.
        scale: of the Laplace noise, in votes.
        gammas: inverse scales compared in figure 2.
        draws: of the noise in figure 2 and of the forests' labels.
        figure4_queries: queries of the students of figure 4, by data set.
        figure4_student: the one that is trained there.
        figure4_strategies: how its queries are chosen.
        figure5_queries: labelled samples of the students of figure 5.
        active_queries: queries of the students of appendix B.2.
        active_rounds: rounds that they are asked in; None for each strategy's own.
        table_queries: queries of the forest students.
        compared_students: students compared at equal queries.
        compared_queries: how many.
        gan_steps: long trainings of a GAN on the first 100 queries.
        repetitions: of that comparison, of figure 5's and appendix B.2's, and of the frontier's
            points.
        sums_epsilons: of feature sums.
        fashion_epsilons: the same on Fashion-MNIST.
        wavelet_epsilons: the same with wavelets beside the default representation.
        sums_repetitions: of these.
        frontier_teachers: of the ensembles whose labels alone are compared.
        frontier_queries: how many of these labels.
        student_steps: training steps of a student; None for each one's own.
        shared_images: image data sets of shared training.
        shared_tables: what the paper's table is measured for: participants, records of each, turns.
        shared_numbers: numbers of participants that are compared at theta_u 0.1.
        shared_records: records of each of these, and wherever nothing else is said.
        shared_rounds: turns of each of these.
        asynchronous_participants: of the comparison of remedies for stale uploads.
        asynchronous_rounds: turns of each of these.
        private_participants: of noisy training, who share all records.
        private_epsilons: what it may cost.
        attacked_rounds: turns of each participant of a run that is attacked.
    """

    name: str
    images: tuple[str, ...]
    tables: tuple[str, ...]
    num_teachers: int
    ensembles: tuple[int, ...]
    distilled_teachers: int
    table_teachers: int
    scale: float
    gammas: tuple[float, ...]
    draws: int
    figure4_queries: dict[str, tuple[int, ...]]
    figure4_student: str
    figure4_strategies: tuple[str, ...]
    figure5_queries: tuple[int, ...]
    active_queries: tuple[int, ...]
    active_rounds: int | None
    table_queries: int
    compared_students: tuple[str, ...]
    compared_queries: tuple[int, ...]
    gan_steps: tuple[int, ...]
    repetitions: int
    sums_epsilons: tuple[float, ...]
    fashion_epsilons: Mapping[str, tuple[float, ...]]
    wavelet_epsilons: Mapping[str, tuple[float, ...]]
    sums_repetitions: int
    frontier_teachers: tuple[int, ...]
    frontier_queries: tuple[int, ...]
    student_steps: int | None
    shared_images: tuple[str, ...]
    shared_tables: tuple[tuple[int, int, int], ...]
    shared_numbers: tuple[int, ...]
    shared_records: int
    shared_rounds: int
    asynchronous_participants: int
    asynchronous_rounds: int
    private_participants: int
    private_epsilons: tuple[float, ...]
    attacked_rounds: int


def delta_of(dataset: str) -> float:
    """The delta that the paper states epsilons of a data set at."""
    return 1e-6 if dataset == "svhn" else 1e-5


FULL = Setting(
    name="full",
    images=("mnist", "svhn"),
    tables=("adult", "diabetes"),
    num_teachers=250,
    ensembles=(10, 100, 250),
    distilled_teachers=50,
    table_teachers=250,
    scale=20.0,
    gammas=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    draws=5,
    figure4_queries={"mnist": (100, 1000), "svhn": (500, 1000)},
    figure4_student="gan",
    figure4_strategies=("first", "diverse"),
    figure5_queries=(100, 500, 1000, 5000, 9000),
    active_queries=(250, 500, 1000),
    active_rounds=None,
    table_queries=500,
    compared_students=("supervised", "gan", "consistency"),
    compared_queries=(100, 500, 1000),
    gan_steps=(30_000,),
    repetitions=3,
    sums_epsilons=(0.01, 0.1),
    fashion_epsilons={"fashion_mnist": (0.01, 0.1, 1.0, 3.0, 8.0)},
    wavelet_epsilons={"fashion_mnist": (1.0, 3.0, 8.0)},
    sums_repetitions=5,
    frontier_teachers=(250, 500),
    frontier_queries=(10, 25, 50, 100, 250, 500, 1000),
    student_steps=None,
    shared_images=("mnist",),
    shared_tables=((30, 2000, 5), (30, 600, 15)),
    shared_numbers=(10, 30, 90, 150),
    shared_records=600,
    shared_rounds=5,
    asynchronous_participants=30,
    asynchronous_rounds=6,
    private_participants=30,
    private_epsilons=(8.0, 3.0, 1.0),
    attacked_rounds=5,
)

QUICK = Setting(
    name="quick",
    images=("digits",),
    tables=("digits",),
    num_teachers=20,
    ensembles=(5, 20),
    distilled_teachers=5,
    table_teachers=5,
    scale=2.0,
    gammas=(0.1, 1.0),
    draws=2,
    figure4_queries={"digits": (100,)},
    figure4_student="supervised",
    figure4_strategies=("first",),
    figure5_queries=(100,),
    active_queries=(60,),
    active_rounds=2,
    table_queries=100,
    compared_students=("supervised",),
    compared_queries=(60,),
    gan_steps=(20,),
    repetitions=2,
    sums_epsilons=(0.5, 8.0),
    fashion_epsilons={"digits": (3.0,)},
    wavelet_epsilons={"digits": (3.0,)},
    sums_repetitions=1,
    frontier_teachers=(20,),
    frontier_queries=(20,),
    student_steps=60,
    shared_images=("digits",),
    shared_tables=((4, 50, 1),),
    shared_numbers=(4, 30),
    shared_records=50,
    shared_rounds=1,
    asynchronous_participants=4,
    asynchronous_rounds=1,
    private_participants=3,
    private_epsilons=(8.0,),
    attacked_rounds=1,
)
