"""Messages on the wire and the values that they stand for."""

from collections.abc import Mapping
from typing import Any, Final

from pate_tf.accounting.local import SecureFeatureSums, SecureHistogram, silo_charge_from_dict
from pate_tf.net import arrays
from pate_tf.silos import silos_pb2 as wire
from pate_tf.silos.messages import (
    Answer,
    QueryBatch,
    RandomisedVotes,
    Reason,
    Refusal,
    Reply,
    SealedShares,
    checked_mechanism,
)
from pate_tf.silos.secure.keys import PartyIdentity
from pate_tf.silos.secure.protocol import PartyMessage, PartyTask, Step
from pate_tf.silos.secure.terms import BatchTerms

_QUERY_DTYPES: Final = ("|u1", "<f4")
# Fields that a value and its message have in common, by name.
_OF_BATCH: Final = ("run_id", "batch_id", "num_classes", "deadline", "witness")
_OF_REPLY: Final = ("run_id", "batch_id", "silo", "witness")
_OF_TERMS: Final = ("run_id", "batch_id", "queries_digest", "num_queries", "num_classes")
_OF_PARTY: Final = ("terms_digest", "party", "content", "signature")


def _fields(source: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns fields of a value, or of a message, whose witness may be missing."""
    values = {name: getattr(source, name) for name in names}
    if isinstance(source, wire.QueryBatch | wire.Reply) and not source.HasField("witness"):
        values["witness"] = None
    return values


def batch_to_wire(batch: QueryBatch) -> wire.QueryBatch:
    """Returns a batch as a message."""
    return wire.QueryBatch(
        **_fields(batch, _OF_BATCH),
        queries=arrays.pack(batch.queries),
        digests=batch.digests,
        mechanism=_mechanism_to_wire(batch.mechanism),
    )


def _mechanism_to_wire(mechanism: Mapping[str, Any]) -> wire.Mechanism:
    parameters = dict(mechanism)
    return wire.Mechanism(name=parameters.pop("name"), parameters=parameters)


def batch_of_wire(message: wire.QueryBatch) -> QueryBatch:
    """Returns the batch of a message; raises ValueError if it is none."""
    return QueryBatch(
        **_fields(message, _OF_BATCH),
        queries=arrays.unpack(message.queries, "queries", dtypes=_QUERY_DTYPES),
        digests=tuple(message.digests),
        mechanism={"name": message.mechanism.name, **message.mechanism.parameters},
    )


def reply_to_wire(reply: Reply) -> wire.Reply:
    """Returns a reply as a message."""
    message = wire.Reply(**_fields(reply, _OF_REPLY))
    if isinstance(reply, RandomisedVotes):
        message.votes.CopyFrom(arrays.pack(reply.labels))
    elif isinstance(reply, SealedShares):
        message.sealed.sealed.extend(reply.sealed)
    else:
        message.refusal = reply.reason.value
    return message


def reply_of_wire(message: wire.Reply) -> Reply:
    """Returns the reply of a message; raises ValueError if it is none."""
    values = _fields(message, _OF_REPLY)
    kind = message.WhichOneof("kind")
    if kind == "votes":
        labels = arrays.unpack(message.votes, "votes", dtypes=("<i8",))
        return RandomisedVotes(**values, labels=labels)
    if kind == "sealed":
        return SealedShares(**values, sealed=tuple(message.sealed.sealed))
    if kind != "refusal" or message.refusal not in {reason.value for reason in Reason}:
        raise ValueError("reply: expected votes, sealed shares or a refusal's reason, got neither")
    return Refusal(**values, reason=Reason(message.refusal))


def answer_of_wire(message: wire.SubmitReply) -> Answer:
    """Returns the answer of a message; `UNKNOWN` for one that isn't known here."""
    known = {wire.Answer.Value(answer.name): answer for answer in Answer}
    return known.get(message.answer, Answer.UNKNOWN)


def task_to_wire(task: PartyTask) -> wire.PartyTask:
    """Returns a party's task as a message."""
    terms = task.terms
    return wire.PartyTask(
        step=task.step.value,
        terms=wire.Terms(
            **_fields(terms, _OF_TERMS),
            mechanism=_mechanism_to_wire(terms.mechanism.to_dict()),
            parties=[party.name for party in terms.parties],
            silos=[silo.name for silo in terms.silos],
        ),
        sealed=dict(task.sealed),
        messages=map(party_message_to_wire, task.messages),
    )


def task_of_wire(message: wire.PartyTask, known: Mapping[str, PartyIdentity]) -> PartyTask:
    """Returns the task of a message.

    Args:
        message: from the coordinator.
        known: the parties and silos that this one knows, by name: no key is learnt from a
            coordinator.

    Raises ValueError if it is none, or names a party or silo that isn't known.
    """
    terms = message.terms
    if not {*terms.parties, *terms.silos} <= set(known):
        raise ValueError("parties: expected ones that this party knows, got others")
    fields = {"name": terms.mechanism.name, **terms.mechanism.parameters}
    mechanism = silo_charge_from_dict(checked_mechanism(fields))
    if not isinstance(mechanism, SecureHistogram | SecureFeatureSums):
        raise ValueError("mechanism: expected one of secure aggregation, got another")
    return PartyTask(
        step=Step(message.step),
        terms=BatchTerms(
            **_fields(terms, _OF_TERMS),
            mechanism=mechanism,
            parties=tuple(known[name] for name in terms.parties),
            silos=tuple(known[name] for name in terms.silos),
        ),
        sealed=dict(message.sealed),
        messages=tuple(map(party_message_of_wire, message.messages)),
    )


def party_message_to_wire(message: PartyMessage) -> wire.PartyMessage:
    """Returns a party's message as one on the wire."""
    return wire.PartyMessage(**_fields(message, _OF_PARTY), step=message.step.value)


def party_message_of_wire(message: wire.PartyMessage) -> PartyMessage:
    """Returns the message of one on the wire; its signature is checked where it is used.

    Raises ValueError if its step is none.
    """
    return PartyMessage(**_fields(message, _OF_PARTY), step=Step(message.step))
