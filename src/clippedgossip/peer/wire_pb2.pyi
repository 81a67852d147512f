from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    DTYPE_FLOAT32: _ClassVar[Dtype]
    DTYPE_BFLOAT16: _ClassVar[Dtype]
    DTYPE_FLOAT16: _ClassVar[Dtype]
DTYPE_UNSPECIFIED: Dtype
DTYPE_FLOAT32: Dtype
DTYPE_BFLOAT16: Dtype
DTYPE_FLOAT16: Dtype

class Terms(_message.Message):
    __slots__ = ("versions", "run", "degree", "length", "dtype", "rule", "tensors", "tensors_digest")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    DEGREE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    run: str
    degree: int
    length: int
    dtype: Dtype
    rule: str
    tensors: _containers.RepeatedScalarFieldContainer[str]
    tensors_digest: bytes
    def __init__(self, versions: _Optional[_Iterable[int]] = ..., run: _Optional[str] = ..., degree: _Optional[int] = ..., length: _Optional[int] = ..., dtype: _Optional[_Union[Dtype, str]] = ..., rule: _Optional[str] = ..., tensors: _Optional[_Iterable[str]] = ..., tensors_digest: _Optional[bytes] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("terms",)
    TERMS_FIELD_NUMBER: _ClassVar[int]
    terms: Terms
    def __init__(self, terms: _Optional[_Union[Terms, _Mapping]] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("terms", "refusal", "version")
    TERMS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    terms: Terms
    refusal: str
    version: int
    def __init__(self, terms: _Optional[_Union[Terms, _Mapping]] = ..., refusal: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("run", "round", "hold_ms", "zstd", "nonce", "last")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    ZSTD_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    hold_ms: int
    zstd: bool
    nonce: bytes
    last: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., hold_ms: _Optional[int] = ..., zstd: bool = ..., nonce: _Optional[bytes] = ..., last: _Optional[int] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("run", "sender", "round", "dtype", "length", "digest", "signature", "zstd", "nonce", "final")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ZSTD_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    run: str
    sender: bytes
    round: int
    dtype: Dtype
    length: int
    digest: bytes
    signature: bytes
    zstd: bool
    nonce: bytes
    final: bool
    def __init__(self, run: _Optional[str] = ..., sender: _Optional[bytes] = ..., round: _Optional[int] = ..., dtype: _Optional[_Union[Dtype, str]] = ..., length: _Optional[int] = ..., digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., zstd: bool = ..., nonce: _Optional[bytes] = ..., final: bool = ...) -> None: ...

class MessagePart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: Header
    chunk: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class WitnessRequest(_message.Message):
    __slots__ = ("run", "round")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class WitnessReply(_message.Message):
    __slots__ = ("headers",)
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    def __init__(self, headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ...) -> None: ...
