"""The graphs of an exported run: `step`, and for translators `encoder`.

    encoder   tokens_BS, mask_BS                     -> the memory of the source, and the state before the first token
    step      token_B, the memory, the state         -> log p of the next token BV, and the new state

A language model has no encoder and no memory; its state starts empty. Batch, source length and the number of positions
read so far may have any size. Every graph is the model's own code, called with the state as plain tensors.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chainrule.interop.onnx.scan import scan_bidirectional, scan_recurrence
from chainrule.interop.onnx.states import (
    ConcatenatedCache,
    StatePart,
    as_layers,
    cache_parts,
    flat,
    recurrent_parts,
)
from chainrule.layers.attention.source import SourceStates
from chainrule.layers.attention.source_memory import SourceMemory
from chainrule.models.seq2seq_recurrent import DecoderState as RecurrentDecoderState
from chainrule.models.seq2seq_transformer import DecoderState
from chainrule.types import Source


class Graphs:
    """What one kind of run exports. Subclasses give the parts of memory and state, and what the graphs compute."""

    translates: ClassVar[bool] = False  # whether there is an encoder
    memory: list[StatePart]  # per source; the length of the source is an axis of size 0
    state: list[StatePart]

    def __init__(self, model: Any) -> None:
        self.model = model
        self.memory, self.state = [], []

    def encode(self, tokens_BS: Tensor, mask_BS: Tensor) -> tuple[Tensor, ...]:
        """The memory, then the state before the first token."""
        raise TypeError(f"{type(self).__name__} has no encoder")

    def step(self, token_B: Tensor, memory: tuple[Tensor, ...], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """log p of the next token BV, then the new state."""
        raise TypeError(f"{type(self).__name__} must define step")

    def predict(self, hidden_BTD: Tensor) -> Tensor:
        """log p of the token after the last position, BV."""
        hidden_BD, bridge = hidden_BTD[:, -1], self.model.bridge
        log_probs_BV: Tensor = self.model.output.log_probs(hidden_BD if bridge is None else bridge(hidden_BD))
        return log_probs_BV


class RecurrentGraphs(Graphs):
    """A recurrent language model."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.state = recurrent_parts(model.features.recurrence)

    def step(self, token_B: Tensor, memory: tuple[Tensor, ...], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        layers = as_layers(state, self.model.features.recurrence.cell.states)
        hidden_BTD, after = self.model.features(self.model.embedding(token_B[:, None]), layers)
        return self.predict(hidden_BTD), *flat(after)


class TransformerGraphs(Graphs):
    """A Transformer language model."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.state = cache_parts(model.features.block_list)

    def step(self, token_B: Tensor, memory: tuple[Tensor, ...], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        caches = [ConcatenatedCache(pairs) for pairs in state]
        hidden_BTD, after = self.model.features(self.model.embedding(token_B[:, None]), caches)
        return self.predict(hidden_BTD), *(cache.pairs_B2HLE for cache in after)


class EncoderDecoderGraphs(Graphs):
    """A Transformer translator, with absolute or rotary positions."""

    translates = True

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        blocks = model.decoder.block_list
        self.state = cache_parts(blocks)
        shape = (blocks[0].heads, 0, blocks[0].shape.attention_width // blocks[0].heads)
        self.memory = [
            StatePart(f"{name}_{number}", shape, 2) for number in range(len(blocks)) for name in ("key", "value")
        ]

    def encode(self, tokens_BS: Tensor, mask_BS: Tensor) -> tuple[Tensor, ...]:
        encoder, B, S = self.model.encoder, *tokens_BS.shape
        embedded_BSD = self.model.embed_source(Source(tokens_BS, mask_BS))
        mask = self.encoder_mask(S, mask_BS[:, None, None, :])
        stream_ND, _ = encoder.run_blocks(encoder.embed(embedded_BSD, 0), B, mask=mask, causal=False)
        encoded_BSD = encoder.finish(stream_ND).view(embedded_BSD.shape)
        memory = flat([block.make_memory(encoded_BSD) for block in self.model.decoder.block_list])
        empty = [encoded_BSD.new_zeros(B, *part.shape) for part in self.state]
        return *memory, *empty

    def encoder_mask(self, length: int, real_B11S: Tensor) -> Tensor:
        """The mask of the encoder's blocks."""
        return real_B11S

    def step(self, token_B: Tensor, memory: tuple[Tensor, ...], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mask_BS, *pairs = memory
        source = SourceMemory([(key, value) for key, value in as_layers(pairs, 2)], mask_BS[:, None, None, :])
        caches = [ConcatenatedCache(tensor) for tensor in state]
        read = DecoderState(source, list(caches), caches[0].length)
        hidden_BTD, after = self.model.read(read, token_B[:, None])
        return self.predict(hidden_BTD), *(cache.pairs_B2HLE for cache in after.caches)


class RelativeGraphs(EncoderDecoderGraphs):
    """A T5."""

    def encoder_mask(self, length: int, real_B11S: Tensor) -> Tensor:
        """The bias of each pair of positions, looked up by their distance; `RelativePositions` needs a known length."""
        relative = self.model.encoder.relative
        here_S = torch.arange(length)
        bucket_SS = relative.bucket_R[here_S[None] - here_S[:, None] + relative.window - 1]
        bias_1HSS = relative.table_UH[bucket_SS].permute(2, 0, 1)[None]
        return torch.where(real_B11S, bias_1HSS, -torch.inf)


class RecurrentTranslatorGraphs(Graphs):
    """A recurrent translator without attention: the memory is the state itself."""

    translates = True

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.state = recurrent_parts(model.decoder)

    def encode(self, tokens_BS: Tensor, mask_BS: Tensor) -> tuple[Tensor, ...]:
        model = self.model
        embedded_BSD = model.embed_source(Source(tokens_BS, mask_BS))
        _, state = scan_recurrence(model.encoder, embedded_BSD, mask_BS, leftward=model.config.reversed_source)
        return tuple(flat(state))

    def step(self, token_B: Tensor, memory: tuple[Tensor, ...], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden_BTD, after = self.model.read(as_layers(state, self.model.decoder.cell.states), token_B[:, None])
        return self.predict(hidden_BTD), *flat(after)


class AttentionTranslatorGraphs(Graphs):
    """A recurrent translator that attends to the source."""

    translates = True

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        hidden = model.config.hidden
        self.memory = [StatePart("keys", (0, hidden), 1), StatePart("values", (0, hidden), 1)]
        self.state = recurrent_parts(model.decoder)
        if model.feed is not None:
            self.state = [*self.state, StatePart("fed", (hidden,))]

    def encode(self, tokens_BS: Tensor, mask_BS: Tensor) -> tuple[Tensor, ...]:
        model = self.model
        embedded_BSD = model.embed_source(Source(tokens_BS, mask_BS))
        encoded_BSE, last = scan_bidirectional(model.encoder, embedded_BSD, mask_BS)
        memory = model.attend.make_memory(encoded_BSE, None)
        first = model.first_state(last[0]).tanh().split(model.config.hidden, 1)
        fed = [] if model.feed is None else [torch.zeros_like(first[0])]
        return memory.keys_ASX, memory.values_ASU, *(part.clone() for part in first), *fed

    def step(self, token_B: Tensor, memory: tuple[Tensor, ...], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mask_BS, keys_BSX, values_BSU = memory
        bias_B1S = torch.where(mask_BS, 0.0, -torch.inf)[:, None]
        fed_BU, layers = (None, state) if self.model.feed is None else (state[-1], state[:-1])
        read = RecurrentDecoderState(
            SourceStates(keys_BSX, values_BSU, bias_B1S), as_layers(layers, self.model.decoder.cell.states), fed_BU
        )
        hidden_BTD, after = self.model.read(read, token_B[:, None])
        return self.predict(hidden_BTD), *flat(after.recurrent), *([] if fed_BU is None else [after.fed_BU])


class StepModule(nn.Module):
    """`Graphs.step` as a module with flat arguments."""

    def __init__(self, graphs: Graphs) -> None:
        super().__init__()
        self.graphs, self.model = graphs, graphs.model

    def forward(self, token_B: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        count = len(parts) - len(self.graphs.state)
        return self.graphs.step(token_B, parts[:count], parts[count:])


class EncoderModule(nn.Module):
    """`Graphs.encode` as a module."""

    def __init__(self, graphs: Graphs) -> None:
        super().__init__()
        self.graphs, self.model = graphs, graphs.model

    def forward(self, tokens_BS: Tensor, mask_BS: Tensor) -> tuple[Tensor, ...]:
        return self.graphs.encode(tokens_BS, mask_BS)


GRAPHS: dict[str, type[Graphs]] = {
    **dict.fromkeys(("rnn", "lstm", "lstm-peephole", "lstm-coupled", "gru"), RecurrentGraphs),
    "transformer": TransformerGraphs,
    "seq2seq-rnn": RecurrentTranslatorGraphs,
    "seq2seq-attention": AttentionTranslatorGraphs,
    "seq2seq-transformer": EncoderDecoderGraphs,
    "t5": RelativeGraphs,
}
"""By the name of our model."""
