"""Building encoders of any registered kind, and the fields with which a configuration names or describes one."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, PlainValidator, SerializeAsAny
from pydantic_core import PydanticCustomError

from chainrule.layers.encoders.base import BaseShape, Encoder, EncoderSizes
from chainrule.registry import ENCODERS


def make_encoder(shape: BaseShape) -> Encoder:
    """The encoder of a shape, freshly initialised."""
    return _encoders_by_kind()[shape.kind](shape)


def shape_of(kind: str, vocab_size: int, **sizes: Any) -> BaseShape:
    """The shape of a registered encoder to train from scratch; `sizes` are fields of `EncoderSizes`."""
    encoder: type[Encoder] = ENCODERS.get(kind).make
    return encoder.Shape.from_sizes(EncoderSizes(vocab_size, **sizes))


def _encoders_by_kind() -> dict[str, type[Encoder]]:
    """The encoder of each kind; the shape of one encoder may describe several kinds."""
    return {kind: entry.make for entry in ENCODERS.entries() for kind in entry.make.Shape.kinds()}


def _check_name(name: str) -> str:
    return ENCODERS.get(name).name


EncoderName = Annotated[str, AfterValidator(_check_name)]
"""The name of a registered encoder."""


def parse_shape(value: Any) -> BaseShape:
    """A shape from plain values; without a `kind` it is that of a BERT."""
    if isinstance(value, BaseShape):
        return value
    if not isinstance(value, dict):
        raise PydanticCustomError("encoder_shape", "expected a table with the shape of an encoder")
    value = {"kind": "bert", **value}
    encoders, kind = _encoders_by_kind(), value["kind"]
    if not isinstance(kind, str) or kind not in encoders:
        details = {"kind": repr(kind), "known": ", ".join(sorted(encoders))}
        raise PydanticCustomError("encoder_kind", "the kind of encoder is {kind}, expected one of {known}", details)
    return encoders[kind].Shape.model_validate(value)


EncoderShape = Annotated[SerializeAsAny[BaseShape], PlainValidator(parse_shape)]
"""The shape of an encoder of any kind."""
