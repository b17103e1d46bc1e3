from pate_tf.net import array_pb2 as _array_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Answer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ANSWER_UNSPECIFIED: _ClassVar[Answer]
    OK: _ClassVar[Answer]
    SAME: _ClassVar[Answer]
    EARLY: _ClassVar[Answer]
ANSWER_UNSPECIFIED: Answer
OK: Answer
SAME: Answer
EARLY: Answer

class JoinRequest(_message.Message):
    __slots__ = ("run", "ledger")
    RUN_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    ledger: LedgerFacts
    def __init__(self, run: _Optional[bytes] = ..., ledger: _Optional[_Union[LedgerFacts, _Mapping]] = ...) -> None: ...

class LedgerFacts(_message.Message):
    __slots__ = ("epsilon", "delta", "ledger_sequence", "ledger_digest", "secure_noise", "was_reset", "num_records", "epsilon_source", "delta_source", "num_ledgers")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    LEDGER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SECURE_NOISE_FIELD_NUMBER: _ClassVar[int]
    WAS_RESET_FIELD_NUMBER: _ClassVar[int]
    NUM_RECORDS_FIELD_NUMBER: _ClassVar[int]
    EPSILON_SOURCE_FIELD_NUMBER: _ClassVar[int]
    DELTA_SOURCE_FIELD_NUMBER: _ClassVar[int]
    NUM_LEDGERS_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    delta: float
    ledger_sequence: int
    ledger_digest: str
    secure_noise: bool
    was_reset: bool
    num_records: int
    epsilon_source: float
    delta_source: float
    num_ledgers: int
    def __init__(self, epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., ledger_sequence: _Optional[int] = ..., ledger_digest: _Optional[str] = ..., secure_noise: _Optional[bool] = ..., was_reset: _Optional[bool] = ..., num_records: _Optional[int] = ..., epsilon_source: _Optional[float] = ..., delta_source: _Optional[float] = ..., num_ledgers: _Optional[int] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _array_pb2.Array
    def __init__(self, values: _Optional[_Union[_array_pb2.Array, _Mapping]] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("run", "round", "wait_seconds")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    round: int
    wait_seconds: float
    def __init__(self, run: _Optional[bytes] = ..., round: _Optional[int] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("parameters",)
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    parameters: Parameters
    def __init__(self, parameters: _Optional[_Union[Parameters, _Mapping]] = ...) -> None: ...

class Parameters(_message.Message):
    __slots__ = ("version", "indices", "values")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    version: int
    indices: _array_pb2.Array
    values: _array_pb2.Array
    def __init__(self, version: _Optional[int] = ..., indices: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., values: _Optional[_Union[_array_pb2.Array, _Mapping]] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("upload", "wait_seconds")
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    upload: bytes
    wait_seconds: float
    def __init__(self, upload: _Optional[bytes] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: Answer
    def __init__(self, answer: _Optional[_Union[Answer, str]] = ...) -> None: ...
