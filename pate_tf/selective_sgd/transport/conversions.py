"""Messages on the wire and the values that they stand for."""

import numpy as np

from pate_tf.selective_sgd.declared import Declared
from pate_tf.selective_sgd.server import Parameters
from pate_tf.selective_sgd.transport import parameters_pb2 as wire
from pate_tf.transport import arrays

_OPTIONAL = ("num_records", "epsilon_all_ensembles", "delta_all_ensembles", "num_ledgers")


def parameters_to_wire(parameters: Parameters, num_parameters: int) -> wire.Parameters:
    """Returns parameters as a message; all of them without indices."""
    message = wire.Parameters(
        version=parameters.version, values=arrays.pack(parameters.values.astype(np.float32))
    )
    if len(parameters.indices) < num_parameters:
        message.indices.CopyFrom(arrays.pack(parameters.indices.astype(np.uint32)))
    return message


def parameters_of_wire(message: wire.Parameters, num_parameters: int) -> Parameters:
    """Returns the parameters of a message.

    Raises:
      ValueError: if it has none of such a model.
    """
    values = arrays.unpack(message.values, "values", dtypes=("<f4",))
    indices = np.arange(num_parameters)
    if message.HasField("indices"):
        indices = arrays.unpack(message.indices, "indices", dtypes=("<u4",)).astype(np.int64)
    if values.ndim != 1 or indices.shape != values.shape:
        raise ValueError("values: expected one for each parameter, got another number")
    if indices[-1] >= num_parameters or (np.diff(indices) <= 0).any():
        raise ValueError(f"indices: expected ascending ones below {num_parameters}, got others")
    return Parameters(version=message.version, indices=indices, values=values)


def declared_to_wire(declared: Declared) -> wire.Paid:
    """Returns what a participant declares that it paid as a message."""
    return wire.Paid(
        epsilon=declared.epsilon,
        delta=declared.delta,
        ledger_sequence=declared.ledger_head[0],
        ledger_digest=declared.ledger_head[1],
        secure_noise=declared.secure_noise,
        was_reset=declared.was_reset,
        **{name: getattr(declared, name) for name in _OPTIONAL},  # None is left out
    )


def declared_of_wire(message: wire.Paid) -> Declared:
    """Returns what a participant declares that it paid.

    Raises:
      ValueError: if it is no such thing.
    """
    return Declared(
        epsilon=message.epsilon,
        delta=message.delta,
        ledger_head=(message.ledger_sequence, message.ledger_digest),
        secure_noise=message.secure_noise,
        was_reset=message.was_reset,
        **{name: getattr(message, name) if message.HasField(name) else None for name in _OPTIONAL},
    )
