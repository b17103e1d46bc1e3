"""How large everything is: as the design asks for, or small enough to show that it runs."""

import dataclasses

FOREST, BALANCED, RIDGE = "random_forest", "balanced_forest", "ridge"
TEACHERS = (FOREST, RIDGE)
EVEN, SKEWED = "even", "skewed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Public sizes.

    Attributes:
        name: "full" or "quick".
        dataset: whose private records the silos share.
        num_silos: in all.
        groups: how many of them are asked, in the table of what survives.
        teachers: kinds of teachers; the first one is a silo's own default.
        epsilons: of one answer.
        num_queries: of the tables.
        sigmas: of secure aggregation, in votes.
        few_queries: of the students that are asked little.
        strategy: how the students' queries are chosen.
        student_epsilons: of one answer, of the students with few queries and of those with
            `num_queries`.
        student_sigmas: likewise.
        student_steps: training steps of a student.
        repetitions: of each student, with fresh noise.
    """

    name: str
    dataset: str
    num_silos: int
    groups: tuple[int, ...]
    teachers: tuple[str, ...]
    epsilons: tuple[float, ...]
    num_queries: int
    sigmas: tuple[float, ...]
    few_queries: int
    strategy: str
    student_epsilons: tuple[tuple[float, ...], tuple[float, ...]]
    student_sigmas: tuple[tuple[float, ...], tuple[float, ...]]
    student_steps: int
    repetitions: int


FULL = Setting(
    name="full",
    dataset="mnist",
    num_silos=250,
    groups=(10, 50, 250),
    teachers=(FOREST,),
    epsilons=(0.5, 1.0, 2.0, 4.0),
    num_queries=1_000,
    sigmas=(20.0, 40.0, 80.0),
    few_queries=100,
    strategy="diverse",
    student_epsilons=((0.5, 1.0, 2.0), (0.5, 1.0)),
    student_sigmas=((20.0, 40.0, 80.0), (40.0,)),
    student_steps=400,
    repetitions=1,
)

QUICK = Setting(
    name="quick",
    dataset="digits",
    num_silos=12,
    groups=(4, 12),
    teachers=(FOREST,),
    epsilons=(2.0, 4.0),
    num_queries=60,
    sigmas=(1.0,),
    few_queries=20,
    strategy="random",
    student_epsilons=((4.0,), ()),
    student_sigmas=((1.0,), ()),
    student_steps=20,
    repetitions=1,
)
