"""What teachers on features need besides records: their number, and a pool's representation."""

import dataclasses

from pate_tf.data.named_function import Named, name_of
from pate_tf.models.encoder import Encoder
from pate_tf.representations import trust
from pate_tf.representations.catalogue import encoder_of
from pate_tf.runs.reporting import Reporting
from pate_tf.runs.sources import DEFAULT_NUM_TEACHERS
from pate_tf.runs.teachers import training as teachers
from pate_tf.teachers.config import TeacherConfig
from pate_tf.teachers.on_features import is_on_features
from pate_tf.values.dataset import Dataset
from pate_tf.values.public import Pool
from pate_tf.values.sensitive import PrivateExamples

RECORDS_A_TEACHER = 30
RECORDS_A_CLASS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommendation:
    """How many teachers, and why. Public, as far as the number of private records is.

    Attributes:
      num_teachers: at least 1.
      reason: in words.
    """

    num_teachers: int
    reason: str


def recommendation(num_records: int, dataset: Dataset) -> Recommendation:
    """Recommends a number of teachers that learn from features, by public values alone.

    The number of private records counts as public here, as it does in the partition, the ledger and
    every statement, where records are protected. Where owners are it is private.
    """
    # Half as many, for twice the teachers: votes were a point better on the pools of MNIST and
    # Fashion-MNIST at an epsilon of .1, no better at .25, and up to two points worse at 1.
    each = max(RECORDS_A_TEACHER, RECORDS_A_CLASS * dataset.num_classes)
    return Recommendation(
        num_teachers=max(1, num_records // each),
        reason=f"{each} records for each of them: epsilon falls with their number, and on "
        f"features these are enough for votes that agree; the number of private records counts as "
        f"public",
    )


def num_teachers(
    asked: int | None,
    model: Named | None,
    examples: PrivateExamples,
    reporting: Reporting,
    *,
    unit: str,
) -> int:
    """Returns how many teachers there are to be; tells of a number that nobody asked for.

    Where owners are protected somebody must ask for one: nothing that follows from the records may
    take its place, since one owner more or less would change it, and all teachers with it.

    Args:
      asked: what the user says; None for what is recommended where teachers learn from features,
        `DEFAULT_NUM_TEACHERS` otherwise.
      model: of a teacher; None for the default.
      examples: whose number counts as public where records are protected.
      reporting: is told.
      unit: what is protected, "record" or "owner".

    Raises:
      ValueError: if owners are protected and no number is asked for.
    """
    if asked is not None:
        return asked
    if unit == "owner":
        raise ValueError(
            "num_teachers: expected it with owners, got none: how many records they have is "
            "private, so no number of teachers can follow from it"
        )
    if model is None or not is_on_features(model):
        return DEFAULT_NUM_TEACHERS
    found = recommendation(len(examples), examples.dataset)
    reporting.note(f"{found.num_teachers} teachers, as recommended: {found.reason}")
    return found.num_teachers


def encoder_for(config: TeacherConfig, pool: Pool | None, reporting: Reporting) -> Encoder | None:
    """Returns what teachers take for an input; None for the raw input.

    Raises:
      ValueError: if a representation is to be learnt and there is no pool, or it does not fit.
    """
    teachers.check_representation(config)
    if config.representation is None:
        return None
    if pool is None:
        raise ValueError(
            f"pool: expected public inputs with teachers of {name_of(config.model)}, got none: "
            f"their representation comes from there"
        )
    with reporting.clock("learning a representation of the pool"):
        encoder = encoder_of(
            pool, config.representation, config.seed, show_progress=reporting.verbose
        )
    doubts = trust.doubts(pool, config.representation, config.seed)
    if doubts is not None:
        reporting.warn(doubts)
    return encoder
