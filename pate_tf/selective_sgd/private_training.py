"""Shared training with noise: what leaves a participant was charged, and costs what was charged."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.accounting.conversions import check_delta
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.release.noise import NoiseSource, SystemNoise
from pate_tf.selective_sgd.run_state import DurableRun, LedgerFacts
from pate_tf.selective_sgd.server import Parameters, Upload
from pate_tf.selective_sgd.settings import LATTICE, TrainingSettings, noise_scale
from pate_tf.selective_sgd.training import FlatView, FloatArray, NotFiniteError, Participants

NUMBERS_AT_ONCE = 2**25  # of gradients of single records
MOST_RECORDS = 1024
# Below one by more than the rounding of lengths in float64.
JUST_BELOW = 1.0 - 1e-9
# Which branch a record takes would decide which records are computed together.
PARTS_BATCHES = "DynamicPartition"
CHOICE = 5  # the third number of the seed that chooses parameters
TWO_TO_64 = 2.0**64


class RecordGradients:
    """Sums over records of gradients clipped to a length.

    Guarantee. The sum is that of a vector of each record that was drawn, to the last bit. The
    vector holds whole numbers, has length at most `LATTICE`, and depends on that record, its place
    among its participant's records and public values alone, not on which others are drawn:

    - A record is always computed at the same place of a batch of the same size; both follow from
      its place among the records and from how many there are, which is public. Other places hold
      other records, or a fixed input. The last bits of a row of a matrix product depend on the
      size of the batch and the row's place in it, and at a threshold of the model they decide on
      the whole gradient; they do not depend on what other rows hold.
    - Gradients are scaled in float64 and cut off toward zero, which makes no vector longer, and
      whole numbers are added exactly.
    - The vector is zero if the gradient is not finite, or if an operation of the model fails.

    Args:
        view: of the model, which must treat records apart: no branches that depend on a record.
        shards: records of participants; all have the same batch size.

    Raises:
        ValueError: if the model does not treat records apart, or takes no records of the data set.
    """

    def __init__(self, view: FlatView, shards: Mapping[int, PrivateExamples]) -> None:
        self._view, self._shards = view, shards
        most = int(np.clip(NUMBERS_AT_ONCE // view.num_parameters, 2, MOST_RECORDS))
        self._num_places = min(most - 1, max(map(len, shards.values())))
        # Place 0 never holds a record: an operation that fails for the fixed input does so in
        # every batch.
        size = self._num_places + 1
        dataset = next(iter(shards.values())).dataset
        fixed = np.broadcast_to(np.asarray(dataset.value_range[0]), dataset.input_shape)
        self._fixed = np.stack([fixed.astype(np.float32)] * size)
        self._graph = tf.function(
            self._run,
            autograph=False,
            input_signature=[
                tf.TensorSpec([view.num_parameters], tf.float32),
                tf.TensorSpec(self._fixed.shape, tf.float32),
                tf.TensorSpec([size], tf.int64),
                tf.TensorSpec([size], tf.bool),
                tf.TensorSpec([None], tf.int64),
                tf.TensorSpec([], tf.float64),
            ],
        )
        self._check()

    def clipped_sum(
        self,
        participant: int,
        drawn: IntArray,
        parameters: FloatArray,
        *,
        indices: IntArray,
        clip: float,
    ) -> IntArray:
        """SENSITIVE: returns the sum, int64 `[num_indices]`, in steps of clip / LATTICE.

        Args:
            participant: whose records.
            drawn: which of them, each once, int64 `[num_drawn]`.
            parameters: float32 `[num_parameters]`.
            indices: of the parameters that are uploaded.
            clip: the length that a record's gradient on these parameters is clipped to.
        """
        shard = self._shards[participant]

        def sum_of(rows: IntArray) -> IntArray:
            """Returns the sum over records of different places."""
            inputs, labels = self._fixed.copy(), np.zeros(len(self._fixed), np.int64)
            places = 1 + rows % self._num_places
            inputs[places], labels[places] = shard.inputs[rows], shard.labels[rows]
            is_drawn = np.zeros(len(self._fixed), np.bool_)
            is_drawn[places] = True
            try:
                arguments = (parameters, inputs, labels, is_drawn, indices, np.float64(clip))
                return np.asarray(self._graph(*map(tf.constant, arguments)).numpy())
            except tf.errors.InvalidArgumentError:
                # An operation fails for one of the records, which must not stop the others.
                total = np.zeros(len(indices), np.int64)
                for row in rows[:, np.newaxis] if len(rows) > 1 else ():
                    total += sum_of(row)
                return total

        # Records of the same place are computed one after another, each in a batch of its own.
        total = np.zeros(len(indices), np.int64)
        for start in range(0, len(shard), self._num_places):
            is_here = (drawn >= start) & (drawn < start + self._num_places)
            total += sum_of(drawn[is_here])
        return total

    def _check(self) -> None:
        """Traces the graph and runs it without any record.

        Raises:
            ValueError: if records would be computed together, or it fails.
        """
        graph = self._graph.get_concrete_function().graph.as_graph_def()
        functions = [function.node_def for function in graph.library.function]
        if any(node.op == PARTS_BATCHES for nodes in (graph.node, *functions) for node in nodes):
            raise ValueError(
                "model: expected one that treats records apart, without branches that depend on "
                "them, as noise is added for single records; got one with such branches"
            )
        none = np.zeros(len(self._fixed), np.int64)
        arguments = (self._view.parameters(), self._fixed, none, none > 0, none[:1], np.float64(1))
        try:
            self._graph(*map(tf.constant, arguments))
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                "model: expected one that takes inputs of the data set, got one that fails for "
                f"the lowest value of its range: {str(error).splitlines()[0]}"
            ) from error

    def _run(
        self,
        parameters: tf.Tensor,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        is_drawn: tf.Tensor,
        indices: tf.Tensor,
        clip: tf.Tensor,
    ) -> tf.Tensor:
        pieces = self._view.pieces(parameters)

        def gradient(record: Any) -> tf.Tensor:
            single, label = record
            _, flat = self._view.loss_and_gradient(pieces, single[tf.newaxis], label[tf.newaxis])
            return tf.gather(flat, indices)

        gradients = tf.cast(tf.vectorized_map(gradient, (inputs, labels)), tf.float64)
        lengths = tf.sqrt(tf.reduce_sum(gradients**2, axis=1, keepdims=True))
        steps = LATTICE * JUST_BELOW / tf.maximum(lengths, clip)
        # Cut off toward zero. A gradient that is not finite would poison the sum.
        is_counted = is_drawn[:, tf.newaxis] & tf.math.is_finite(lengths)
        whole = tf.cast(tf.where(is_counted, gradients * steps, 0.0), tf.int64)
        return tf.reduce_sum(whole, axis=0)


def clipped_steps(values: FloatArray, clip: float) -> IntArray:
    """SENSITIVE: returns a vector in steps of clip / LATTICE, of L2 norm at most LATTICE.

    It is scaled in float64 and cut off toward zero, which makes no vector longer. One that is not
    finite becomes zero.
    """
    wide: npt.NDArray[np.float64] = values.astype(np.float64)
    length = float(np.sqrt((wide**2).sum()))
    if not np.isfinite(length):
        return np.zeros(len(values), np.int64)
    return np.trunc(wide * (LATTICE * JUST_BELOW / max(length, clip))).astype(np.int64)


class NoisyParticipants(Participants):
    """SENSITIVE: participants, each of which adds Gaussian noise of its own to what it uploads.

    Guarantee. What participant i uploads in all rounds is differentially private as its ledger
    says, against replacement of one of its records ("record") or of all of them ("participant"),
    toward all others, the server included (docs/proofs/selective_sgd.md, Theorems F1 to F3). Which
    parameters are uploaded is chosen by the public seed. Which records are drawn stays secret.
    Nothing that private records decide stops a run or shows in whether there is an upload: a
    participant whose training comes to no finite numbers, or fails in an operation of the model,
    uploads noise on zeros.

    Args:
        settings: of the run.
        model: a Keras model from raw inputs to logits.
        records: by the participant's number, from 0.
        run: charges all rounds, once everything else fits; nothing is drawn before.
        noise: draws records and noise. Default: the operating system's entropy.
        declare: called with what the ledger says then.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        model: keras.Model,
        records: Mapping[int, PrivateExamples],
        *,
        run: DurableRun | None,
        noise: NoiseSource | None = None,
        declare: Callable[[LedgerFacts], object] = lambda facts: None,
    ) -> None:
        super().__init__(settings, model, records)
        charge = settings.charge()
        if charge is None or run is None:
            raise ValueError("directory: expected one with privacy, for the ledger, got none")
        is_record = settings.privacy == "record"
        number = sum(map(len, records.values())) if is_record else settings.num_participants
        check_delta(settings.delta, number, settings.privacy)
        self._noise, self._scale = noise or SystemNoise(), noise_scale(charge)
        self._gradients = RecordGradients(self.view, records) if is_record else None
        declare(run.charge(charge, secure_noise=self._noise.is_secure))

    def upload(
        self, participant: int, round_number: int, parameters: Parameters
    ) -> tuple[Upload, float]:
        """Returns a noisy upload, and the mean local loss; NaN where records are protected."""
        settings, num_parameters = self.settings, self.view.num_parameters
        generator = np.random.default_rng([settings.seed, round_number, CHOICE])
        chosen = generator.permutation(num_parameters)[: settings.num_uploaded(num_parameters)]
        indices, factor, loss = np.sort(chosen), 1.0, float("nan")
        if self._gradients is None:
            try:
                change, loss = self.change(participant, round_number, parameters.values)
            except (NotFiniteError, tf.errors.InvalidArgumentError):
                change = np.zeros(num_parameters, np.float32)
            exact = clipped_steps(change[indices], settings.clip)
        else:
            # The number of a participant's records is public where records are protected; the size
            # of a draw is not used.
            number, rate = len(self.records[participant]), settings.sampling_rate
            below = np.uint64(min(int(rate * TWO_TO_64), 2**64 - 1))
            drawn = np.arange(number)
            if rate < 1.0:
                drawn = np.flatnonzero(self._noise.words(number) < below)
            exact = self._gradients.clipped_sum(
                participant, drawn, parameters.values, indices=indices, clip=settings.clip
            )
            factor = -settings.learning_rate_at(round_number) / (rate * number)
        noisy = exact + self._noise.gaussian_integers(self._scale, len(indices))
        upload = Upload(
            participant=participant,
            round=round_number,
            version=parameters.version,
            indices=indices,
            values=(noisy * (factor * settings.clip / LATTICE)).astype(np.float32),
        )
        return upload, loss


def participants_of(
    settings: TrainingSettings,
    model: keras.Model,
    records: Mapping[int, PrivateExamples],
    **options: Any,
) -> Participants:
    """Returns participants, noisy ones with privacy; arguments and errors as theirs."""
    if settings.is_noisy:
        return NoisyParticipants(settings, model, records, **options)
    return Participants(settings, model, records)
