"""A small translator of transformers, and the stepper that makes it a model of this toolkit."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chainrule.types import SteppingModel, select_rows

EOS, START, PAD = 0, 1, 1


class HuggingFaceState(NamedTuple):
    """The encoded source and the prefix of a translator of transformers."""

    memory_BSD: Tensor
    mask_BS: Tensor
    tokens_BT: Tensor


class HuggingFaceStepper(SteppingModel):
    """A translator of transformers as a stepper that reads the whole prefix at each step."""

    def __init__(self, model: Any) -> None:
        self.model, self.vocab_size = model, model.config.vocab_size

    def start(self, source: tuple[Tensor, Tensor]) -> HuggingFaceState:
        source_BS, mask_BS = source
        memory_BSD = self.model.get_encoder()(source_BS, attention_mask=mask_BS).last_hidden_state
        return HuggingFaceState(memory_BSD, mask_BS, source_BS[:, :0])

    def step(self, state: HuggingFaceState, token_B: Tensor) -> tuple[Tensor, HuggingFaceState]:
        tokens_BT = torch.cat([state.tokens_BT, token_B[:, None]], 1)
        outputs = self.model(
            encoder_outputs=(state.memory_BSD,), attention_mask=state.mask_BS, decoder_input_ids=tokens_BT
        )
        return outputs.logits[:, -1].log_softmax(-1), state._replace(tokens_BT=tokens_BT)

    def select(self, state: HuggingFaceState, rows_K: Tensor) -> HuggingFaceState:
        chosen: HuggingFaceState = select_rows(state, rows_K)
        return chosen


@functools.cache
def marian(seed: int) -> Any:
    """A small translator with random weights; later positions favour eos, so that lengths differ."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(seed)
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = MarianConfig(
        vocab_size=60, d_model=16, **layers, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32,
        eos_token_id=EOS, pad_token_id=PAD, decoder_start_token_id=START, forced_eos_token_id=None, init_std=0.5,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    output_VD, eos_D = torch.randn(60, 16) * 0.3, torch.randn(16)
    output_VD[EOS] = eos_D
    model.lm_head.weight = torch.nn.Parameter(output_VD)
    positions_TD = model.model.decoder.embed_positions.weight.data
    positions_TD += 0.5 * torch.arange(len(positions_TD))[:, None] * eos_D
    return model


def until_eos(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens
