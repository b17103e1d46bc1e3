"""The coordinator's part of secure aggregation: it relays what aggregators say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pate_tf.core.validation import IntArray
from pate_tf.silos.secure import shamir
from pate_tf.silos.secure.protocol import (
    STEPS,
    AggregatorMessage,
    AggregatorTask,
    BatchTerms,
    ProtocolError,
    Step,
    Transcript,
)

# Asks one aggregator; raises ConnectionError or TimeoutError while it can't be reached.
Ask = Callable[[AggregatorTask], AggregatorMessage]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OpenedHistogram:
    """What opens of a batch, and nothing else does. Publishable.

    Attributes:
        noisy_counts: int64 `[num_queries, num_classes]`, in units of 1 / LATTICE votes; of feature
            sums `[1, size]`, in units of 1 / LATTICE.
        silos: those whose votes or sums are in it, in order.
        left_out: the others, with what is known of why; their budgets stay spent.
    """

    noisy_counts: IntArray
    silos: tuple[str, ...]
    left_out: Mapping[str, str]


def open_histogram(
    terms: BatchTerms, sealed: Mapping[str, Sequence[bytes]], aggregators: Sequence[Ask]
) -> OpenedHistogram:
    """Has the aggregators add up the silos' votes and returns the noisy histogram.

    Relays what aggregators say; what it relayed wrongly, they would refuse. May be repeated after
    any failure, with the same arguments: each gives the answers that it gave before. The last step
    needs `2 * threshold + 1` of them; the others need all.

    Args:
        terms: of the batch.
        sealed: by silo, its sealed shares, one for each aggregator. Keep them until the histogram
            is there.
        aggregators: how to ask each, in the order of their numbers.

    Raises:
        ConnectionError: if one can't be reached; nothing has opened. The batch goes on from there
            once it is back.
        ProtocolError: if one says what it can't say.
        TooFewSilosError: if too few silos' shares fit; nothing will ever open of these terms.
        ValueError: as an aggregator refuses.
    """
    transcript, messages = Transcript(terms), tuple[AggregatorMessage, ...]()

    def ask(number: int) -> AggregatorMessage | None:
        """Returns an aggregator's message on the step; None if it can't be reached."""
        dealt = sealed if step is Step.COMMIT else {}
        task = AggregatorTask(
            step=step,
            terms=terms,
            sealed={silo: shares[number - 1] for silo, shares in dealt.items()},
            messages=messages,
        )
        try:
            message = aggregators[number - 1](task)
        except (ConnectionError, TimeoutError):
            return None
        if message.aggregator != number:
            raise ProtocolError(f"{step.value}: expected a message of aggregator {number}")
        return message

    with ThreadPoolExecutor(len(terms.aggregators)) as pool:
        for step in STEPS:
            answers = list(pool.map(ask, terms.numbers))
            messages = tuple(message for message in answers if message is not None)
            is_last = step is Step.RELEASE
            if len(messages) < (2 * terms.threshold + 1 if is_last else len(answers)):
                raise ConnectionError(
                    f"{terms.aggregators[answers.index(None)].name} could not be reached at the "
                    f"step {step.value}: start it again on its own folder and repeat; nothing has "
                    "opened"
                )
            transcript = transcript.after(step, messages)
    left_out = {}
    for silo in sorted(set(sealed) - set(transcript.passing)):
        left_out[silo] = "an aggregator could not open its share"
        if silo in transcript.silos:
            left_out[silo] = "votes are not one for each query, or shares don't fit each other"
        elif all(silo in commitment.dealings for commitment in transcript.committed):
            left_out[silo] = "aggregators hold shares of different dealings: one was replaced"
    return OpenedHistogram(
        noisy_counts=shamir.to_integers(transcript.total),
        silos=transcript.passing,
        left_out=left_out,
    )
