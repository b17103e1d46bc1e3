"""Messages on the wire and the values that they stand for."""

from collections.abc import Mapping
from typing import Final

from pate_tf.accounting.local.secure_histogram import SecureHistogram
from pate_tf.net import arrays
from pate_tf.silos import messages
from pate_tf.silos import silos_pb2 as wire
from pate_tf.silos.messages import (
    Answer,
    QueryBatch,
    RandomisedVotes,
    Reason,
    Refusal,
    SealedShares,
)
from pate_tf.silos.secure.keys import PartyIdentity
from pate_tf.silos.secure.messages import PartyMessage, PartyTask, Step
from pate_tf.silos.secure.terms import BatchTerms

_ANSWERS: Final = {answer: wire.Answer.Value(answer.name) for answer in Answer}
_QUERY_DTYPES: Final = ("|u1", "<f4")


def batch_to_wire(batch: QueryBatch) -> wire.QueryBatch:
    """Returns a batch as a message."""
    parameters = dict(batch.mechanism)
    return wire.QueryBatch(
        run_id=batch.run_id,
        batch_id=batch.batch_id,
        queries=arrays.pack(batch.queries),
        digests=batch.digests,
        num_classes=batch.num_classes,
        mechanism=wire.Mechanism(name=parameters.pop("name"), parameters=parameters),
        deadline=batch.deadline,
        witness=batch.witness,
    )


def batch_of_wire(message: wire.QueryBatch) -> QueryBatch:
    """Returns the batch of a message.

    Raises:
      ValueError: if it is none.
    """
    mechanism = message.mechanism
    return QueryBatch(
        run_id=message.run_id,
        batch_id=message.batch_id,
        queries=arrays.unpack(message.queries, "queries", dtypes=_QUERY_DTYPES),
        digests=tuple(message.digests),
        num_classes=message.num_classes,
        mechanism={"name": mechanism.name, **mechanism.parameters},
        deadline=message.deadline,
        witness=_witness_of_wire(message),
    )


def reply_to_wire(reply: messages.Reply) -> wire.Reply:
    """Returns a reply as a message."""
    message = wire.Reply(run_id=reply.run_id, batch_id=reply.batch_id, silo=reply.silo)
    if isinstance(reply, RandomisedVotes):
        message.votes.CopyFrom(arrays.pack(reply.labels))
    elif isinstance(reply, SealedShares):
        message.sealed.sealed.extend(reply.sealed)
    else:
        message.refusal = reply.reason.value
    if not isinstance(reply, Refusal) and reply.witness is not None:
        message.witness = reply.witness
    return message


def reply_of_wire(message: wire.Reply) -> messages.Reply:
    """Returns the reply of a message.

    Raises:
      ValueError: if it is none.
    """
    names = {"run_id": message.run_id, "batch_id": message.batch_id, "silo": message.silo}
    kind = message.WhichOneof("kind")
    if kind == "votes":
        return RandomisedVotes(
            **names,
            labels=arrays.unpack(message.votes, "votes", dtypes=("<i8",)),
            witness=_witness_of_wire(message),
        )
    if kind == "sealed":
        return SealedShares(
            **names,
            sealed=tuple(message.sealed.sealed),
            witness=_witness_of_wire(message),
        )
    if kind == "refusal":
        reasons = {reason.value: reason for reason in Reason}
        if message.refusal not in reasons:
            raise ValueError(f"refusal: expected a reason of {', '.join(reasons)}, got another")
        return Refusal(**names, reason=reasons[message.refusal])
    raise ValueError("reply: expected votes, sealed shares or a refusal, got neither")


def _witness_of_wire(message: wire.QueryBatch | wire.Reply) -> bytes | None:
    return message.witness if message.HasField("witness") else None


def answer_to_wire(answer: Answer) -> wire.SubmitReply:
    """Returns an answer as a message."""
    return wire.SubmitReply(answer=_ANSWERS[answer])


def answer_of_wire(message: wire.SubmitReply) -> Answer:
    """Returns the answer of a message; `UNKNOWN` for one that isn't known here."""
    return next(
        (answer for answer, number in _ANSWERS.items() if number == message.answer), Answer.UNKNOWN
    )


def task_to_wire(task: PartyTask) -> wire.PartyTask:
    """Returns a party's task as a message."""
    terms = task.terms
    return wire.PartyTask(
        step=task.step.value,
        terms=wire.Terms(
            run_id=terms.run_id,
            batch_id=terms.batch_id,
            queries_digest=terms.queries_digest,
            num_queries=terms.num_queries,
            num_classes=terms.num_classes,
            sigma=terms.mechanism.sigma,
            threshold=terms.threshold,
            parties=[party.name for party in terms.parties],
        ),
        sealed=dict(task.sealed),
        messages=[party_message_to_wire(message) for message in task.messages],
    )


def task_of_wire(message: wire.PartyTask, known: Mapping[str, PartyIdentity]) -> PartyTask:
    """Returns the task of a message.

    Args:
      message: from the coordinator.
      known: the parties that this one knows, by name: nobody learns a key from a coordinator.

    Raises:
      ValueError: if it is none, or names a party that isn't known.
    """
    terms = message.terms
    if not set(terms.parties) <= set(known):
        raise ValueError("parties: expected ones that this party knows, got others")
    return PartyTask(
        step=_step(message.step),
        terms=BatchTerms(
            run_id=terms.run_id,
            batch_id=terms.batch_id,
            queries_digest=terms.queries_digest,
            num_queries=terms.num_queries,
            num_classes=terms.num_classes,
            mechanism=SecureHistogram(terms.sigma, len(terms.parties), terms.threshold),
            parties=tuple(known[name] for name in terms.parties),
        ),
        sealed=dict(message.sealed),
        messages=tuple(party_message_of_wire(one) for one in message.messages),
    )


def party_message_to_wire(message: PartyMessage) -> wire.PartyMessage:
    """Returns a party's message as one on the wire."""
    return wire.PartyMessage(
        terms_digest=message.terms_digest,
        step=message.step.value,
        party=message.party,
        content=message.content,
        signature=message.signature,
    )


def party_message_of_wire(message: wire.PartyMessage) -> PartyMessage:
    """Returns the message of one on the wire; whoever uses it checks its signature.

    Raises:
      ValueError: if its step is none.
    """
    return PartyMessage(
        terms_digest=message.terms_digest,
        step=_step(message.step),
        party=message.party,
        content=message.content,
        signature=message.signature,
    )


def _step(name: str) -> Step:
    try:
        return Step(name)
    except ValueError:
        raise ValueError("step: expected one of secure aggregation, got another") from None
