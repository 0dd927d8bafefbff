"""The vector of a word from its spelling: convolutions over its bytes, the maximum of each filter, highway layers.

Kim et al., "Character-Aware Neural Language Models", 2016; also used by Jozefowicz et al., "Exploring the Limits of
Language Modeling", 2016, and by ELMo. The spellings of the vocabulary are a fixed table, which is built from the words
when a model is trained and saved with its weights. A spelling has S symbols, the vector of a byte is E wide.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from chainrule.base.parameters import HasTables
from chainrule.errors import ConfigError
from chainrule.layers.fused.linear import Linear

PAD, BEGIN, END = 0, 257, 258
"""Symbols besides the bytes, which are 1 … 256: padding, the beginning of a word, and its end."""

SYMBOL_COUNT = 259


class CharacterShape(BaseModel):
    """The options of the convolutions over a spelling."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    spelling: int = Field(24, ge=3, description="largest number of symbols of a spelling, its two ends included")
    byte_width: int = Field(16, ge=1, description="width of a byte's vector")
    kernels: tuple[int, ...] = Field((1, 2, 3, 4, 5, 6), min_length=1, description="numbers of bytes that filters see")
    filters: int = Field(25, ge=1, description="filters that see one byte; k times as many see k bytes")
    highway: int = Field(2, ge=0, description="highway layers after the convolutions")

    @model_validator(mode="after")
    def _check(self) -> CharacterShape:
        if min(self.kernels) < 1 or max(self.kernels) > self.spelling:
            raise ConfigError(
                f"the filters see {', '.join(map(str, self.kernels))} bytes, but a spelling has 1 to {self.spelling}; "
                "choose kernels in this range, or longer spellings"
            )
        return self


def spell(word: str, length: int) -> list[int]:
    """The symbols of a word: its beginning, as many of its UTF-8 bytes as fit, its end, and padding."""
    symbols = [BEGIN, *(byte + 1 for byte in word.encode(errors="surrogatepass")[: length - 2]), END]
    return symbols + [PAD] * (length - len(symbols))


class Highway(nn.Module):
    """t ∘ relu(W x + b) + (1 - t) ∘ x with t = σ(W_t x + b_t) (Srivastava et al., 2015); initially t is small."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change, self.gate = Linear(width, width), Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, inputs_NF: Tensor) -> Tensor:
        return torch.lerp(inputs_NF, self.change(inputs_NF).relu(), self.gate(inputs_NF).sigmoid())


class CharConvolution(HasTables, nn.Module):
    """Tokens to vectors by their spelling, in place of a table of embeddings.

    Without `pieces`, the words of the vocabulary, the table of spellings is blank until weights are loaded.
    """

    only_tables = True  # it has the role of one
    spellings_VL: Tensor  # (vocabulary, symbols of a spelling)

    def __init__(self, shape: CharacterShape, vocab_size: int, width: int, pieces: Sequence[str] | None) -> None:
        super().__init__()
        self.shape = shape
        spelled = [] if pieces is None else [spell(piece, shape.spelling) for piece in pieces]
        blank_VS = torch.zeros(vocab_size, shape.spelling, dtype=torch.int16)
        self.register_buffer("spellings_VL", torch.tensor(spelled, dtype=torch.int16) if spelled else blank_VS)
        self.byte_table = nn.Embedding(SYMBOL_COUNT, shape.byte_width, padding_idx=PAD)
        counts = [shape.filters * kernel for kernel in shape.kernels]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(shape.byte_width, count, kernel) for count, kernel in zip(counts, shape.kernels, strict=True)
        )
        self.highways = nn.ModuleList(Highway(sum(counts)) for _ in range(shape.highway))
        self.project = Linear(sum(counts), width)

    @property
    def is_blank(self) -> bool:
        """Whether the spellings are unknown."""
        return not bool(self.spellings_VL[:1].any())

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of any shape -> the vector of each in one more dimension; each distinct token is computed once."""
        words_N, index = tokens.unique(return_inverse=True)
        vectors_ND: Tensor = self.embed_spellings(self.spellings_VL[words_N].long())
        return vectors_ND[index]

    def embed_spellings(self, symbols_NS: Tensor) -> Tensor:
        """Spellings -> vectors, ND. A filter sees padding only if the word is shorter than its kernel."""
        bytes_NES = self.byte_table(symbols_NS).transpose(1, 2)
        lengths_N1 = (symbols_NS != PAD).sum(1, keepdim=True)
        maxima = []
        for kernel, convolution in zip(self.shape.kernels, self.convolutions, strict=True):
            answers_NFS = convolution(bytes_NES)
            starts_S = torch.arange(answers_NFS.shape[2], device=symbols_NS.device)
            beyond_NS = (starts_S > 0) & (starts_S + kernel > lengths_N1)
            maxima.append(answers_NFS.masked_fill(beyond_NS[:, None], -torch.inf).amax(2))
        features_NF = torch.cat(maxima, 1).relu()
        for highway in self.highways:
            features_NF = highway(features_NF)
        vectors_ND: Tensor = self.project(features_NF)
        return vectors_ND
