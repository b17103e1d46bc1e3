from pate_tf.net import array_pb2 as _array_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Answer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ANSWER_UNSPECIFIED: _ClassVar[Answer]
    OK: _ClassVar[Answer]
    SAME: _ClassVar[Answer]
    CONFLICT: _ClassVar[Answer]
    LATE: _ClassVar[Answer]
    UNKNOWN: _ClassVar[Answer]
ANSWER_UNSPECIFIED: Answer
OK: Answer
SAME: Answer
CONFLICT: Answer
LATE: Answer
UNKNOWN: Answer

class PollRequest(_message.Message):
    __slots__ = ("wait_seconds",)
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    wait_seconds: float
    def __init__(self, wait_seconds: _Optional[float] = ...) -> None: ...

class PollReply(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: QueryBatch
    def __init__(self, batch: _Optional[_Union[QueryBatch, _Mapping]] = ...) -> None: ...

class QueryBatch(_message.Message):
    __slots__ = ("run_id", "batch_id", "queries", "digests", "num_classes", "mechanism", "deadline", "witness")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_CLASSES_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    WITNESS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    batch_id: str
    queries: _array_pb2.Array
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    num_classes: int
    mechanism: Mechanism
    deadline: float
    witness: bytes
    def __init__(self, run_id: _Optional[str] = ..., batch_id: _Optional[str] = ..., queries: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., digests: _Optional[_Iterable[bytes]] = ..., num_classes: _Optional[int] = ..., mechanism: _Optional[_Union[Mechanism, _Mapping]] = ..., deadline: _Optional[float] = ..., witness: _Optional[bytes] = ...) -> None: ...

class Mechanism(_message.Message):
    __slots__ = ("name", "parameters")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    parameters: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., parameters: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("run_id", "batch_id", "silo", "votes", "sealed", "refusal", "witness")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    WITNESS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    batch_id: str
    silo: str
    votes: _array_pb2.Array
    sealed: SealedShares
    refusal: str
    witness: bytes
    def __init__(self, run_id: _Optional[str] = ..., batch_id: _Optional[str] = ..., silo: _Optional[str] = ..., votes: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., sealed: _Optional[_Union[SealedShares, _Mapping]] = ..., refusal: _Optional[str] = ..., witness: _Optional[bytes] = ...) -> None: ...

class SealedShares(_message.Message):
    __slots__ = ("sealed",)
    SEALED_FIELD_NUMBER: _ClassVar[int]
    sealed: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, sealed: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: Answer
    def __init__(self, answer: _Optional[_Union[Answer, str]] = ...) -> None: ...

class TaskReply(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: PartyTask
    def __init__(self, task: _Optional[_Union[PartyTask, _Mapping]] = ...) -> None: ...

class PartyTask(_message.Message):
    __slots__ = ("step", "terms", "sealed", "messages")
    class SealedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    step: str
    terms: Terms
    sealed: _containers.ScalarMap[str, bytes]
    messages: _containers.RepeatedCompositeFieldContainer[PartyMessage]
    def __init__(self, step: _Optional[str] = ..., terms: _Optional[_Union[Terms, _Mapping]] = ..., sealed: _Optional[_Mapping[str, bytes]] = ..., messages: _Optional[_Iterable[_Union[PartyMessage, _Mapping]]] = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("run_id", "batch_id", "queries_digest", "num_queries", "num_classes", "mechanism", "parties", "silos")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    QUERIES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_QUERIES_FIELD_NUMBER: _ClassVar[int]
    NUM_CLASSES_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    PARTIES_FIELD_NUMBER: _ClassVar[int]
    SILOS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    batch_id: str
    queries_digest: bytes
    num_queries: int
    num_classes: int
    mechanism: Mechanism
    parties: _containers.RepeatedScalarFieldContainer[str]
    silos: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_id: _Optional[str] = ..., batch_id: _Optional[str] = ..., queries_digest: _Optional[bytes] = ..., num_queries: _Optional[int] = ..., num_classes: _Optional[int] = ..., mechanism: _Optional[_Union[Mechanism, _Mapping]] = ..., parties: _Optional[_Iterable[str]] = ..., silos: _Optional[_Iterable[str]] = ...) -> None: ...

class PartyMessage(_message.Message):
    __slots__ = ("terms_digest", "step", "party", "content", "signature")
    TERMS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PARTY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    terms_digest: bytes
    step: str
    party: int
    content: bytes
    signature: bytes
    def __init__(self, terms_digest: _Optional[bytes] = ..., step: _Optional[str] = ..., party: _Optional[int] = ..., content: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class TaskResult(_message.Message):
    __slots__ = ("task_digest", "message", "refusal")
    TASK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    task_digest: bytes
    message: PartyMessage
    refusal: str
    def __init__(self, task_digest: _Optional[bytes] = ..., message: _Optional[_Union[PartyMessage, _Mapping]] = ..., refusal: _Optional[str] = ...) -> None: ...
