"""Writing the graphs of a model as ONNX files, and comparing them with the model at other sizes."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.base.kernels import kernels_suspended
from chainrule.interop.onnx.graphs import EncoderModule, Graphs, StepModule
from chainrule.interop.onnx.states import StatePart
from chainrule.types import Source

STEP, ENCODER = "step.onnx", "encoder.onnx"
BATCH, LENGTH, POSITIONS = 3, 5, 4
"""Sizes of the examples with which graphs are traced; other sizes are compared."""

MEMORY_MASK = StatePart("mask", (0,), 1)


class _Example(NamedTuple):
    """An input of a graph: its name, an example, and the axes that may have any size."""

    name: str
    tensor: Tensor
    axes: tuple[int, ...]


def write_graphs(graphs: Graphs, folder: Path) -> None:
    """Write `step.onnx` and, for translators, `encoder.onnx`."""
    with torch.no_grad(), kernels_suspended(), _quiet():
        if graphs.translates:
            tokens_BS = torch.ones(BATCH, LENGTH, dtype=torch.int64)
            inputs = [
                _Example("tokens", tokens_BS, (0, 1)),
                _Example("mask", torch.ones_like(tokens_BS, dtype=torch.bool), (0, 1)),
            ]
            outputs = [part.name for part in (*graphs.memory, *graphs.state)]
            _write(EncoderModule(graphs), inputs, outputs, folder / ENCODER)
        step = [_Example("token", torch.ones(BATCH, dtype=torch.int64), (0,))]
        step += [_example(part, LENGTH) for part in memory_parts(graphs)]
        step += [_example(part, POSITIONS) for part in graphs.state]
        _write(StepModule(graphs), step, ["log_probs", *(f"next_{part.name}" for part in graphs.state)], folder / STEP)


def memory_parts(graphs: Graphs) -> list[StatePart]:
    """What a step reads of the source: the mask, and the memory that the encoder returned."""
    return [MEMORY_MASK, *graphs.memory] if graphs.memory else []


def _example(part: StatePart, size: int) -> _Example:
    shape = [BATCH, *part.shape]
    if part.grows is not None:
        shape[part.grows] = size
    tensor = torch.ones(shape, dtype=torch.bool) if part is MEMORY_MASK else torch.randn(shape)
    return _Example(part.name, tensor, (0,) if part.grows is None else (0, part.grows))


def _write(module: nn.Module, inputs: Sequence[_Example], outputs: list[str], path: Path) -> None:
    dynamic = tuple(dict.fromkeys(one.axes, torch.export.Dim.DYNAMIC) for one in inputs)
    arguments = tuple(one.tensor for one in inputs)
    shapes: Any = (dynamic[0], dynamic[1:]) if isinstance(module, StepModule) else dynamic
    program = torch.onnx.export(
        module.eval(),
        arguments,
        dynamo=True,
        dynamic_shapes=shapes,
        input_names=[one.name for one in inputs],
        output_names=outputs,
        verbose=False,
    )
    assert program is not None
    program.save(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the notes of the exporter, which concern its authors, off the terminal."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


# Comparison


@torch.inference_mode()
def greatest_difference(graphs: Graphs, folder: Path) -> float:
    """The greatest difference of log p between the graphs and the model, at other sizes than the examples."""
    sessions = {name: _open(folder / name) for name in ((ENCODER, STEP) if graphs.translates else (STEP,))}
    return max(_compare(graphs, sessions, batch, length, steps) for batch, length, steps in ((1, 1, 6), (2, 7, 3)))


def _open(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _compare(graphs: Graphs, sessions: dict[str, Any], batch: int, length: int, steps: int) -> float:
    model, random = graphs.model, torch.Generator().manual_seed(length)
    tokens_BT = torch.randint(model.vocab_size, (batch, steps), generator=random)
    feeds: dict[str, Any] = {}
    if graphs.translates:
        source = _random_source(model, batch, length, random)
        ours, feeds = model.start(source), _encode(graphs, sessions[ENCODER], source)
    else:
        ours = model.start(batch)
        feeds = {part.name: np.zeros((batch, *part.shape), np.float32) for part in graphs.state}
    worst = 0.0
    for token_B in tokens_BT.unbind(1):
        expected_BV, ours = model.step(ours, token_B)
        found_BV, *after = sessions[STEP].run(None, {"token": token_B.numpy(), **feeds})
        feeds |= {part.name: value for part, value in zip(graphs.state, after, strict=True)}
        worst = max(worst, float(np.abs(found_BV - expected_BV.numpy()).max()))
    return worst


def _random_source(model: Any, batch: int, length: int, random: torch.Generator) -> Source:
    """Sources of different lengths, each ended by eos."""
    source_table = model.source_table or model.word_table
    tokens_BS = torch.randint(source_table.num_embeddings, (batch, length), generator=random)
    mask_BS = torch.arange(length)[None] < torch.arange(length, length - batch, -1)[:, None]
    return Source(tokens_BS, mask_BS)


def _encode(graphs: Graphs, session: Any, source: Source) -> dict[str, Any]:
    """What the steps after the first receive, by name."""
    tokens, mask = source.tokens_BS.numpy(), source.mask_BS.numpy()
    names = [part.name for part in (*graphs.memory, *graphs.state)]
    feeds = dict(zip(names, session.run(None, {"tokens": tokens, "mask": mask}), strict=True))
    return {**feeds, "mask": mask} if graphs.memory else feeds
