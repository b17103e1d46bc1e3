"""What a server learns from uploads: whose records a participant has, and which canaries."""

import contextlib
import dataclasses
import pathlib
import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from scipy.special import logsumexp
from scipy.stats import binom

from pate_tf.aggregation.noise import NoiseSource
from pate_tf.core.record_set import RecordSet
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.ledger import LedgerWarning
from pate_tf.models import catalogue
from pate_tf.selective_sgd import models
from pate_tf.selective_sgd.private_training import training_with
from pate_tf.selective_sgd.run_state import LEDGER, ChargedRun
from pate_tf.selective_sgd.settings import Privacy, Settings
from pate_tf.selective_sgd.training import SharedTraining
from pate_tf.selective_sgd.upload import decode

FloatArray = npt.NDArray[np.float64]
MODEL = "mlp"
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attacked:
    """A run that is attacked.

    Attributes:
        settings: of the run; all participants download all parameters, and no upload is stale.
        privacy: of the run.
        records_each: of each participant.
        noise: draws noise.
        folder: for the ledgers.
    """

    settings: Settings
    privacy: Privacy
    records_each: int
    noise: NoiseSource
    folder: str

    @property
    def is_noisy(self) -> bool:
        """Whether uploads have noise; steps are far too large then for losses to follow them."""
        return self.privacy.kind != "none"


def membership_auc(private: PrivateExamples, run: Attacked) -> float:
    """Returns how well the server tells participants' records from others: an AUC.

    The server adds what a participant uploaded to the parameters that it had downloaded, and asks
    how much the loss of each record falls by that (with noise: in the direction of the upload);
    the falls of all rounds are added. The mean over all participants.

    Args:
        private: records; the participants take the first of them, as many more belong to none.
        run: what is attacked.
    """
    shares = _shares(private, run, run.settings.num_participants + 1)
    others = shares.pop()
    seen = _seen(shares, run)
    found = [
        _auc(*(_falls(seen, number, examples, run) for examples in (members, others)))
        for number, members in enumerate(shares)
    ]
    return float(np.mean(found))


def canaries_show(private: PrivateExamples, run: Attacked) -> float:
    """Returns an epsilon that the run has at least, with 95 % confidence, at its own delta.

    A third of the first participant's records are canaries: images of random black and white, each
    with one of two labels, by a coin. The server guesses the coins of the half of them that it is
    surest about. One run suffices (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, Theorem
    5.2); as a coin replaces a record, what is shown is against replacement.

    Args:
        private: records; the participants take the first of them.
        run: what is attacked.
    """
    shares = _shares(private, run, run.settings.num_participants)
    generator = np.random.default_rng([run.settings.seed, 1])
    dataset, members = private.dataset, shares[0]
    number = run.records_each // 3
    coins = generator.integers(0, 2, number)
    pairs = np.array([generator.permutation(dataset.num_classes)[:2] for _ in range(number)])
    low, high = (float(np.min(one)) for one in dataset.value_range)
    canaries = np.where(generator.random((number, *dataset.input_shape)) < 0.5, low, high)
    canaries = canaries.astype(members.inputs.dtype)
    labels = pairs[np.arange(number), coins].astype(members.labels.dtype)
    shares[0] = PrivateExamples(
        dataset,
        np.concatenate([canaries, members.inputs[number:]]),
        np.concatenate([labels, members.labels[number:]]),
    )
    seen = _seen(shares, run)
    places = np.arange(number)
    scores = np.zeros(number)
    for before, change in seen.steps[0]:
        logits, moved = _logits(seen.training, before, change, canaries, along=run.is_noisy)
        scores += (moved - logits)[places, pairs[:, 1]] - (moved - logits)[places, pairs[:, 0]]
    surest = np.argsort(-np.abs(scores))[: number // 2]
    right = int(((scores > 0) == (coins == 1))[surest].sum())
    return least_epsilon(total=number, guessed=len(surest), right=right, delta=run.privacy.delta)


def least_epsilon(*, total: int, guessed: int, right: int, delta: float) -> float:
    """Returns the largest epsilon that so many right guesses rule out; 0 if they rule out none.

    Args:
        total: coins.
        guessed: coins that were guessed, the others left open.
        right: right guesses.
        delta: of the guarantee that is tested.
    """

    def is_ruled_out(epsilon: float) -> bool:
        chance = 1.0 / (1.0 + np.exp(-epsilon))
        numbers = np.arange(1, right + 1)
        within = np.cumsum(binom.pmf(right - numbers, guessed, chance)) / numbers
        extra = 2.0 * total * delta * within.max(initial=0.0)
        return bool(binom.sf(right - 1, guessed, chance) + extra <= 1.0 - CONFIDENCE)

    low, high = 0.0, 20.0
    if not is_ruled_out(low):
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_ruled_out(middle) else (low, middle)
    return low


@dataclasses.dataclass(frozen=True)
class _Seen:
    """By participant: the parameters that it began a round with, and what it uploaded."""

    training: SharedTraining
    steps: Sequence[list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]]


def _shares(private: PrivateExamples, run: Attacked, number: int) -> list[PrivateExamples]:
    order = np.random.default_rng(run.settings.seed).permutation(len(private))
    parts = order[: number * run.records_each].reshape(number, -1)
    return [
        PrivateExamples(private.dataset, private.inputs[one], private.labels[one]) for one in parts
    ]


def _seen(shares: Sequence[PrivateExamples], run: Attacked) -> _Seen:
    """Runs all rounds and keeps what the server sees."""
    settings, privacy, dataset = run.settings, run.privacy, shares[0].dataset
    model = catalogue.build(models.network(MODEL, dataset), dataset, seed=settings.seed)
    charged = None
    if privacy.kind != "none":
        records = RecordSet.of(np.concatenate([share.inputs for share in shares]))
        charged = ChargedRun(pathlib.Path(run.folder) / LEDGER, records, privacy)
    with warnings.catch_warnings(), charged or contextlib.nullcontext():
        # Of the other trials' ledgers of the same records.
        warnings.simplefilter("ignore", LedgerWarning)
        training = training_with(
            privacy,
            settings,
            model,
            shares,
            begin=None if charged is None else charged.beginning(run.noise),
            noise=run.noise,
        )
    seen = _Seen(training, [[] for _ in shares])
    server, push = training.server, training.server.push
    begun = server.values

    def watched(content: bytes) -> str:
        size = server.num_parameters
        upload = decode(content, num_parameters=size, most=size)
        change = np.zeros(size, np.float32)
        change[upload.indices] = upload.values
        is_synchronous = settings.protocol == "synchronous"
        before = begun if is_synchronous else server.values.copy()
        seen.steps[upload.participant].append((before, change))
        return push(content)

    server.push = watched  # type: ignore[method-assign]
    for _ in range(settings.rounds):
        begun = server.values.copy()
        training.run_round()
    return seen


def _falls(seen: _Seen, participant: int, examples: PrivateExamples, run: Attacked) -> FloatArray:
    """Returns how much each example's loss fell by a participant's uploads, `[num_examples]`."""
    falls = np.zeros(len(examples))
    for before, change in seen.steps[participant]:
        logits, moved = _logits(seen.training, before, change, examples.inputs, along=run.is_noisy)
        if run.is_noisy:
            slopes = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))
            slopes[np.arange(len(slopes)), examples.labels] -= 1.0
            falls -= (slopes * (moved - logits)).sum(axis=1)
        else:
            falls += _losses(logits, examples.labels) - _losses(moved, examples.labels)
    return falls


def _losses(logits: FloatArray, labels: IntArray) -> FloatArray:
    own = logits[np.arange(len(labels)), labels]
    return np.asarray(logsumexp(logits, axis=1) - own)


def _logits(
    training: SharedTraining,
    before: npt.NDArray[np.float32],
    change: npt.NDArray[np.float32],
    inputs: npt.NDArray[np.generic],
    *,
    along: bool,
) -> tuple[FloatArray, FloatArray]:
    """Returns logits before a change and after it, `[num_inputs, num_classes]` each.

    Args:
        training: whose model it is.
        before: parameters.
        change: of them.
        inputs: raw.
        along: whether logits move on as they begin to, in a straight line.
    """
    view, given = training.view, tf.constant(inputs, tf.float32)
    model = view.assign(before, view.initial_buffers)
    variables = model.trainable_variables
    moves = view.pieces(tf.constant(change))
    if not along:
        logits = model(given, training=False).numpy()
        moved = view.assign(before + change, view.initial_buffers)(given, training=False).numpy()
        return logits.astype(np.float64), moved.astype(np.float64)
    with tf.autodiff.ForwardAccumulator([one.value for one in variables], moves) as forward:
        logits = model(given, training=False)
    slope = forward.jvp(logits).numpy().astype(np.float64)
    return logits.numpy().astype(np.float64), logits.numpy() + slope


def _auc(members: FloatArray, others: FloatArray) -> float:
    """The probability that a member's number is larger, ties counted half."""
    order = np.sort(others)
    below = np.searchsorted(order, members, "left")
    up_to = np.searchsorted(order, members, "right")
    return float((below + up_to).mean() / (2.0 * len(others)))
