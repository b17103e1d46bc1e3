"""Shared training with noise: what leaves a participant was charged, and costs what was charged."""

import abc
import contextlib
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.accounting.noisy_training import NoisyTraining, SparseVectorTraining, Training
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.models import catalogue
from pate_tf.release.noise import NoiseSource, SystemNoise
from pate_tf.selective_sgd import models, upload
from pate_tf.selective_sgd.models import FlatView
from pate_tf.selective_sgd.run_state import LEDGER, ChargedRun, LedgerFacts
from pate_tf.selective_sgd.settings import LATTICE, Privacy, Settings, noise_scale
from pate_tf.selective_sgd.training import NotFiniteError, RoundStatistics, SharedTraining
from pate_tf.selective_sgd.upload import FloatArray

NUMBERS_AT_ONCE = 2**25  # of gradients of single records
MOST_RECORDS = 1024
# Below one by more than the rounding of lengths in float64.
JUST_BELOW = 1.0 - 1e-9
NO_PARTICIPANT = -1  # whose sums are dropped
# Which branch a record takes would decide which records are computed together.
PARTS_BATCHES = "DynamicPartition"

# Places in a batch, inputs, labels and participants of records.
Batch = tuple[IntArray, npt.NDArray[Any], IntArray, IntArray]


class RecordGradients:
    """Sums over records of gradients clipped to a length, for all participants in one graph.

    Guarantee. A participant's sum is the sum of a vector of each of its records that were drawn, to
    the last bit. The vector holds whole numbers, has length at most `LATTICE`, and depends on that
    record, its place among all records and public values alone, not on which others are drawn:

    - A record is always computed at the same place of a batch of the same size; both follow from
      its place among all records and from how many there are, which is public. Other places hold
      other records, or a fixed input. The last bits of a row of a matrix product depend on the
      size of the batch and the row's place in it, and at a threshold of the model they decide on
      the whole gradient; they do not depend on what other rows hold.
    - Gradients are scaled in float64 and cut off towards zero, which makes no vector longer, and
      whole numbers are added exactly.
    - The vector is zero if the gradient is not finite, or if an operation of the model fails.

    Args:
        view: of the model, which must treat records apart: no statistics over a batch, no dropout,
            no branches that depend on a record.
        shares: each participant's records.

    Raises:
        ValueError: if the model does not treat records apart, or takes no records of the data set.
    """

    def __init__(self, view: FlatView, shares: Sequence[PrivateExamples]) -> None:
        if view.model.non_trainable_variables:
            raise ValueError(
                "model: expected one that treats records apart, without batch normalization and "
                "dropout, as noise is added for single records; got one that holds more than its "
                "parameters"
            )
        self._view, self._shares = view, shares
        self._starts = np.cumsum([0, *map(len, shares)])
        most = int(np.clip(NUMBERS_AT_ONCE // view.num_parameters, 2, MOST_RECORDS))
        self._num_places = min(most - 1, int(self._starts[-1]))
        # Place 0 never holds a record: an operation that fails for the fixed input does so in
        # every batch.
        size = self._num_places + 1
        dataset = shares[0].dataset
        fixed = np.broadcast_to(np.asarray(dataset.value_range[0]), dataset.input_shape)
        self._fixed = np.stack([fixed.astype(np.float32)] * size)
        self._graph = tf.function(
            self._run,
            autograph=False,
            input_signature=[
                tf.TensorSpec([view.num_parameters], tf.float32),
                tf.TensorSpec(self._fixed.shape, tf.float32),
                tf.TensorSpec([size], tf.int64),
                tf.TensorSpec([size], tf.int64),
                tf.TensorSpec([None], tf.int64),
                tf.TensorSpec([], tf.float64),
            ],
        )
        self._check(view.initial())

    def sums(
        self, parameters: FloatArray, drawn: Sequence[IntArray], *, indices: IntArray, clip: float
    ) -> IntArray:
        """SENSITIVE: returns the sums, int64 `[num_participants, num_indices]`, in clip / LATTICE.

        Args:
            parameters: float32 `[num_parameters]`.
            drawn: of each participant, which of its records, each once, int64 `[num_drawn]`.
            indices: of the parameters that are uploaded, the same for all.
            clip: the length that a record's gradient on these parameters is clipped to.
        """
        inputs = np.concatenate(
            [share.inputs[one] for share, one in zip(self._shares, drawn, strict=True)]
        )
        labels = np.concatenate(
            [share.labels[one] for share, one in zip(self._shares, drawn, strict=True)]
        )
        owners = np.repeat(np.arange(len(drawn)), [len(one) for one in drawn])
        places = 1 + (self._starts[owners] + np.concatenate(drawn)) % self._num_places
        # Records of the same place are computed one after another, each in a batch of its own.
        order = np.argsort(places, kind="stable")
        in_order = places[order]
        batches = np.arange(len(order)) - np.searchsorted(in_order, in_order)
        total = np.zeros((len(drawn), len(indices)), np.int64)
        for batch in range(int(batches.max(initial=-1)) + 1):
            some = order[batches == batch]
            records = (places[some], inputs[some], labels[some], owners[some])
            total += self._sums_of_batch(parameters, records, indices, clip)
        return total

    def _sums_of_batch(
        self, parameters: FloatArray, records: Batch, indices: IntArray, clip: float
    ) -> IntArray:
        try:
            return self._computed(parameters, records, indices, clip)
        except tf.errors.InvalidArgumentError:
            # An operation fails for one of the records, which must not stop the others.
            total = np.zeros((len(self._shares), len(indices)), np.int64)
            number = len(records[0])
            for one in range(number if number > 1 else 0):
                places, inputs, labels, owners = (each[one : one + 1] for each in records)
                record = (places, inputs, labels, owners)
                total += self._sums_of_batch(parameters, record, indices, clip)
            return total

    def _computed(
        self, parameters: FloatArray, records: Batch, indices: IntArray, clip: float
    ) -> IntArray:
        inputs, labels = self._fixed.copy(), np.zeros(len(self._fixed), np.int64)
        owners = np.full(len(self._fixed), NO_PARTICIPANT, np.int64)
        places = records[0]
        inputs[places], labels[places], owners[places] = records[1:]
        found = self._graph(
            tf.constant(parameters),
            tf.constant(inputs),
            tf.constant(labels),
            tf.constant(owners),
            tf.constant(indices),
            tf.constant(clip, tf.float64),
        )
        return np.asarray(found.numpy())

    def _check(self, parameters: FloatArray) -> None:
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
        nothing = np.zeros(0, np.int64)
        try:
            records = (nothing, self._fixed[:0], nothing, nothing)
            self._computed(parameters, records, np.zeros(1, np.int64), 1.0)
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
        owners: tf.Tensor,
        indices: tf.Tensor,
        clip: tf.Tensor,
    ) -> tf.Tensor:
        pieces = self._view.pieces(parameters)

        def gradient(record: Any) -> tf.Tensor:
            one, label = record
            _, found, _ = self._view.loss_and_gradients(
                pieces, [], one[tf.newaxis], label[tf.newaxis]
            )
            return tf.gather(self._view.joined(found), indices)

        gradients = tf.vectorized_map(gradient, (inputs, labels))
        wide = tf.cast(gradients, tf.float64)
        lengths = tf.sqrt(tf.reduce_sum(wide**2, axis=1, keepdims=True))
        steps = LATTICE * JUST_BELOW / tf.maximum(lengths, clip)
        # Cut off towards zero. A gradient that is not finite would poison the sum.
        whole = tf.where(tf.math.is_finite(lengths), wide * steps, 0.0)
        return tf.math.unsorted_segment_sum(tf.cast(whole, tf.int64), owners, len(self._shares))


# The paper's private uploads: the sparse vector technique, in whole lattice steps. As commonly
# described; the section of the paper is missing from our text.

STEPS = 2**16  # of gamma
MOST_SCALE = 2.0**30


def noise_scales(charge: SparseVectorTraining) -> tuple[float, float, float]:
    """Returns the scales of the noise on thresholds, comparisons and values, in steps.

    Raises:
        ValueError: if one is too large to be drawn exactly.
    """
    # A change of the participant's records moves a number by up to 2 gamma.
    spread = 2 * STEPS
    half = charge.epsilon_each * 8.0 / 9.0 / 2.0
    found = (spread / half, 2.0 * spread / half, spread / (charge.epsilon_each / 9.0))
    if max(found) > MOST_SCALE:
        raise ValueError(
            f"target_epsilon: expected more for so many numbers, got {charge.epsilon_each:.3g} for "
            f"each of them, less than can be drawn exactly"
        )
    return found


def uploaded(
    change: FloatArray,
    *,
    charge: SparseVectorTraining,
    gamma: float,
    threshold: float,
    noise: NoiseSource,
    generator: np.random.Generator,
) -> tuple[IntArray, FloatArray]:
    """Returns indices, ascending, and noisy values of one upload.

    Parameters are visited in a random order that does not look at their changes. A threshold with
    new noise after each number that passed is compared with noisy absolute values; what passed is
    clipped, gets noise of its own, and is clipped again (docs/proofs/selective_sgd.md, Proposition
    F4).

    Args:
        change: of all parameters, float32 `[num_parameters]`. SENSITIVE.
        charge: of the run.
        gamma: the largest absolute value of a number.
        threshold: tau, as a share of gamma.
        noise: draws the noise.
        generator: draws the order, which is no secret.

    Raises:
        ValueError: as `noise_scales`.
    """
    threshold_scale, query_scale, value_scale = noise_scales(charge)
    finite = np.where(np.isfinite(change), change, 0.0).astype(np.float64)
    steps = np.trunc(np.clip(finite, -gamma, gamma) / gamma * STEPS).astype(np.int64)
    order = generator.permutation(len(steps))
    queries = np.abs(steps[order]) + noise.laplace_integers(query_scale, len(order))
    number = charge.num_uploaded
    above = round(threshold * STEPS)
    thresholds = above + noise.laplace_integers(threshold_scale, number)
    passed: list[int] = []
    start = 0
    for limit in thresholds:
        found = np.flatnonzero(queries[start : start + 64] >= limit)
        if not found.size:  # seldom: look at all that is left
            found = np.flatnonzero(queries[start:] >= limit)
            if not found.size:
                break
        start += int(found[0])
        passed.append(start)
        start += 1
    indices = np.sort(order[np.array(passed, np.int64)])
    noisy = steps[indices] + noise.laplace_integers(value_scale, len(indices))
    values = np.clip(noisy, -STEPS, STEPS) * (gamma / STEPS)
    return indices, values.astype(np.float32)


_CHOICE = 5
TWO_TO_64 = 2.0**64


class ChargedTraining(SharedTraining):
    """SENSITIVE: shared training that is charged before anything leaves.

    Nothing that private records decide stops a run or shows in whether there is an upload: a
    participant whose training comes to no finite numbers, or fails in an operation of the model,
    uploads noise on zeros.

    Args:
        settings: of the run.
        model: see `SharedTraining`.
        shares: each participant's records.
        privacy: what protects uploads.
        noise: draws records and noise.
        begin: charges all rounds, once everything else fits; nothing is drawn before it returns.
            See `ChargedRun.begin`.
        holders: how many participants hold one record at most.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
    """

    def __init__(
        self,
        settings: Settings,
        model: keras.Model,
        shares: Sequence[PrivateExamples],
        *,
        privacy: Privacy,
        noise: NoiseSource,
        begin: Callable[[Training], LedgerFacts],
        holders: int = 1,
    ) -> None:
        super().__init__(settings, model, shares, privacy)
        charge = privacy.training(settings, self.view.num_parameters, holders)
        if charge is None:
            raise ValueError("privacy: expected some, got none")
        self._privacy, self._noise, self.charge = privacy, noise, charge
        self._prepare(charge)
        self.facts = begin(charge)

    @abc.abstractmethod
    def _prepare(self, charge: Training) -> None:
        """Takes up what is about to be charged.

        Raises:
            ValueError: if it does not fit.
        """

    def _train(self, participant: int) -> tuple[FloatArray, float]:
        try:
            return super()._train(participant)
        except (NotFiniteError, tf.errors.InvalidArgumentError):
            return np.zeros(self.view.num_parameters, np.float32), float("nan")


class GaussianTraining(ChargedTraining):
    """SENSITIVE: synchronous rounds in which every participant adds Gaussian noise of its own.

    Guarantee. What participant i uploads in all rounds is differentially private as its ledger
    says, against replacement of one of its records ("record") or of all of them ("participant"),
    towards all others, the server included (docs/proofs/selective_sgd.md, Theorems F1 to F3). Which
    parameters are uploaded is chosen without private data. Which records are drawn stays secret.

    Arguments as `ChargedTraining`: the protocol is "synchronous", the privacy of a Gaussian kind.
    """

    def _prepare(self, charge: Training) -> None:
        if not isinstance(charge, NoisyTraining):
            raise ValueError("privacy: expected a Gaussian kind, got another")
        self._scale = noise_scale(charge)
        num_participants, num_parameters = self.settings.num_participants, self.view.num_parameters
        self._momentum = np.zeros((num_participants, num_parameters), np.float32)
        self._history = np.zeros(num_parameters, np.float64)
        self._gradients = (
            RecordGradients(self.view, self._shares) if self._privacy.kind == "record" else None
        )

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """See `SharedTraining.state`."""
        return {**super().state(), "momentum": self._momentum, "history": self._history}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """See `SharedTraining.restore`."""
        super().restore(arrays)
        self._momentum = np.array(arrays["momentum"])
        self._history = np.array(arrays["history"])

    def _take_turns(self) -> list[dict[str, float]]:
        indices = self._chosen()
        for participant in range(self.settings.num_participants):
            self._download(participant)
        if self._gradients is None:
            sums, scales, loss = self._clipped_changes(indices)
        else:
            sums, scales, loss = self._sums_of_records(self._gradients, indices)
        turns = []
        for participant, (exact, scale) in enumerate(zip(sums, scales, strict=True)):
            noise = self._noise.gaussian_integers(self._scale, len(indices))
            released = ((exact + noise) * (self._privacy.clip / LATTICE)).astype(np.float32)
            self._history[indices] += np.abs(released)
            values = released
            if self._gradients is not None and self._privacy.momentum:
                self._momentum[participant] *= np.float32(self._privacy.momentum)
                self._momentum[participant][indices] += released
                values = self._momentum[participant][indices]
            statistics = self._upload(participant, indices, np.float32(scale) * values)
            turns.append({**statistics, "loss": loss})
        return turns

    def _chosen(self) -> IntArray:
        """Returns the parameters of this round, from public values alone."""
        number = self.settings.num_uploaded(self.view.num_parameters)
        generator = self._generator(_CHOICE)
        kept = np.zeros(0, np.int64)
        if self._privacy.choice == "history" and self._history.any():
            # Half of them: the others could never come up.
            kept = upload.most_updated(self._history, number // 2, generator)
        others = np.setdiff1d(np.arange(self.view.num_parameters), kept)
        chosen = generator.permutation(others)[: number - len(kept)]
        return np.sort(np.concatenate([kept, chosen]))

    def _sums_of_records(
        self, gradients: RecordGradients, indices: IntArray
    ) -> tuple[IntArray, list[float], float]:
        """Draws records and sums their clipped gradients; the size of a draw is not used."""
        rate = self._privacy.sampling_rate
        below = np.uint64(min(int(rate * TWO_TO_64), 2**64 - 1))
        drawn = [
            np.flatnonzero(self._noise.words(len(share)) < below)
            if rate < 1.0
            else np.arange(len(share))
            for share in self._shares
        ]
        sums = gradients.sums(self.server.values, drawn, indices=indices, clip=self._privacy.clip)
        step = self.settings.learning_rate_at(self.round)
        # The number of a participant's records is public where records are protected.
        return sums, [-step / (rate * len(share)) for share in self._shares], float("nan")

    def _clipped_changes(self, indices: IntArray) -> tuple[IntArray, list[float], float]:
        """Trains every participant and clips its whole upload."""
        sums, losses = [], []
        for participant in range(self.settings.num_participants):
            change, loss = self._train(participant)
            sums.append(clipped_steps(change[indices], self._privacy.clip))
            losses.append(loss)
        return np.stack(sums), [1.0] * len(sums), float(np.mean(losses))


def clipped_steps(values: FloatArray, clip: float) -> IntArray:
    """SENSITIVE: returns a vector in steps of clip / LATTICE, of L2 norm at most LATTICE.

    It is scaled in float64 and cut off towards zero, which makes no vector longer. One that is not
    finite becomes zero.
    """
    wide = values.astype(np.float64)
    length = float(np.sqrt((wide**2).sum()))
    if not np.isfinite(length):
        return np.zeros(len(values), np.int64)
    return np.trunc(wide * (LATTICE * JUST_BELOW / max(length, clip))).astype(np.int64)


class SparseVectorSharedTraining(ChargedTraining):
    """SENSITIVE: the paper's private uploads, for reproduction; arguments as `ChargedTraining`."""

    def _prepare(self, charge: Training) -> None:
        if not isinstance(charge, SparseVectorTraining):
            raise ValueError("privacy: expected sparse_vector, got another")
        noise_scales(charge)  # can they be drawn
        self._uploaded = functools.partial(
            uploaded,
            charge=charge,
            gamma=self._privacy.clip,
            threshold=self._privacy.threshold,
            noise=self._noise,
        )

    def _selected(self, participant: int, change: FloatArray) -> tuple[IntArray, FloatArray]:
        return self._uploaded(change, generator=self._generator(_CHOICE, participant))


def training_with(
    privacy: Privacy,
    settings: Settings,
    model: keras.Model,
    shares: Sequence[PrivateExamples],
    *,
    begin: Callable[[Training], LedgerFacts] | None,
    noise: NoiseSource,
    holders: int = 1,
) -> SharedTraining:
    """Returns the training that the privacy asks for; arguments and errors as `ChargedTraining`.

    Without privacy `begin` is None, and nothing is charged.
    """
    if (begin is None) != (privacy.kind == "none"):
        raise ValueError("begin: expected one with privacy, and none without")
    if begin is None:
        return SharedTraining(settings, model, shares)
    kind = GaussianTraining if privacy.is_gaussian else SparseVectorSharedTraining
    return kind(settings, model, shares, privacy=privacy, begin=begin, noise=noise, holders=holders)


def train(
    private: PrivateExamples,
    settings: Settings,
    *,
    model: Named | None = None,
    privacy: Privacy | None = None,
    records_each: int | None = None,
    directory: str | pathlib.Path | None = None,
    noise: NoiseSource | None = None,
    on_round: Callable[[RoundStatistics], object] = lambda statistics: None,
) -> SharedTraining:
    """Trains a model together in this process, on records of one data set that are dealt out.

    >>> from pate_tf import selective_sgd
    >>> settings = selective_sgd.Settings(num_participants=4, rounds=2, upload=0.1)
    >>> shared = selective_sgd.train(data.private, settings, model="mlp")
    >>> shared.global_model().count_params()
    20426

    Without `privacy` what is uploaded has no privacy guarantee, and neither has the model. With it
    every call is a run with a ledger of its own, which is charged before the first upload.

    Args:
        private: the records, and where they are features the raw records that these are of
            (`origin`). SENSITIVE.
        settings: how they train.
        model: "cnn", "mlp", "linear", another name that `models.catalogue` takes, or a function of
            the data set that returns a Keras model from raw inputs to logits.
        privacy: what protects uploads. Default: nothing.
        records_each: records of each participant. Default: all are dealt out evenly.
        directory: of the run; the ledger lies below it. Needed with privacy.
        noise: where noise comes from. Default: the operating system's entropy.
        on_round: called after each round.

    Returns:
        The training, all rounds done: `global_model()`, `local_model(participant)`.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
        LedgerError: if the ledger does not suffice, or can't be used.
    """
    shares, holders = models.dealt(private, settings, records_each)
    builder = models.network(model, private.dataset)
    built = catalogue.build(builder, private.dataset, seed=settings.seed)
    privacy, noise = privacy or Privacy(), noise or SystemNoise()
    charged = None
    if privacy.kind != "none":
        if directory is None:
            raise ValueError("directory: expected one with privacy, for the ledger, got none")
        folder = pathlib.Path(directory) / "sensitive" / LEDGER
        charged = ChargedRun(folder, private.source, privacy)
    with charged or contextlib.nullcontext():
        training = training_with(
            privacy,
            settings,
            built,
            shares,
            begin=None if charged is None else charged.beginning(noise),
            noise=noise,
            holders=holders,
        )
    while training.round < settings.rounds:
        on_round(training.run_round())
    return training
