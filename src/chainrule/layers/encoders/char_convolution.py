"""A word's vector from its spelling: convolutions over its bytes, the greatest answer of each filter, highways.

Kim et al., "Character-Aware Neural Language Models", 2016; Jozefowicz et al., "Exploring the Limits of Language
Modeling", 2016, and ELMo use the same. The spellings of all words of a vocabulary are a fixed table, made from the
words when a model is trained and kept with its weights.
Legend: V vocabulary, L symbols of a spelling, N words, C width of a byte's vector, F filters, D width of a word.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from chainrule.errors import ConfigError

PAD, BEGIN, END = 0, 257, 258
"""Symbols beside the bytes, which are 1 … 256: what fills a row, what stands before a word, what stands after it."""

SYMBOLS = 259


class CharacterShape(BaseModel):
    """What the convolutions over a spelling are like."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spelling: int = Field(24, ge=3, description="most symbols of a spelling, its two ends among them")
    byte_width: int = Field(16, ge=1, description="width of a byte's vector")
    kernels: tuple[int, ...] = Field((1, 2, 3, 4, 5, 6), min_length=1, description="how many bytes filters see")
    filters: int = Field(25, ge=1, description="filters that see one byte; of those that see k there are k times that")
    highway: int = Field(2, ge=0, description="highway layers after the convolutions")

    @model_validator(mode="after")
    def _check(self) -> CharacterShape:
        if min(self.kernels) < 1 or max(self.kernels) > self.spelling:
            raise ConfigError(
                f"the filters see {', '.join(map(str, self.kernels))} bytes, but a spelling has 1 to {self.spelling}; "
                "choose kernels between these, or longer spellings"
            )
        return self


def spell(word: str, length: int) -> list[int]:
    """The symbols of a word: its beginning, its UTF-8 bytes, as many as there is room for, its end, and padding."""
    symbols = [BEGIN, *(byte + 1 for byte in word.encode(errors="surrogatepass")[: length - 2]), END]
    return symbols + [PAD] * (length - len(symbols))


class Highway(nn.Module):
    """t ∘ relu(W x + b) + (1 - t) ∘ x with t = σ(W_t x + b_t) (Srivastava et al., 2015); carries at the start."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, inputs_NF: Tensor) -> Tensor:
        return torch.lerp(inputs_NF, self.change(inputs_NF).relu(), self.gate(inputs_NF).sigmoid())


class CharConvolution(nn.Module):
    """Tokens to vectors by the spelling of each; stands where a table of embeddings would.

    Without `pieces`, the words of the vocabulary, the table of spellings is blank until weights are put in.
    """

    spellings_VL: Tensor

    def __init__(self, shape: CharacterShape, vocab_size: int, width: int, pieces: Sequence[str] | None) -> None:
        super().__init__()
        self.shape = shape
        spelled = [] if pieces is None else [spell(piece, shape.spelling) for piece in pieces]
        blank_VL = torch.zeros(vocab_size, shape.spelling, dtype=torch.int16)
        self.register_buffer("spellings_VL", torch.tensor(spelled, dtype=torch.int16) if spelled else blank_VL)
        self.byte_table = nn.Embedding(SYMBOLS, shape.byte_width, padding_idx=PAD)
        counts = [shape.filters * kernel for kernel in shape.kernels]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(shape.byte_width, count, kernel) for count, kernel in zip(counts, shape.kernels, strict=True)
        )
        self.highways = nn.ModuleList(Highway(sum(counts)) for _ in range(shape.highway))
        self.project = nn.Linear(sum(counts), width)

    @property
    def blank(self) -> bool:
        """Whether no spelling is known."""
        return not bool(self.spellings_VL[:1].any())

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of any shape -> the vector of each, one dimension more; each different token is spelled once."""
        words_N, place = tokens.unique(return_inverse=True)
        vectors_ND: Tensor = self.spelled(self.spellings_VL[words_N].long())
        return vectors_ND[place]

    def spelled(self, symbols_NL: Tensor) -> Tensor:
        """Spellings -> vectors, ND. A filter sees no more padding than it needs to be filled."""
        bytes_NCL = self.byte_table(symbols_NL).transpose(1, 2)
        lengths_N1 = (symbols_NL != PAD).sum(1, keepdim=True)
        found = []
        for kernel, convolution in zip(self.shape.kernels, self.convolutions, strict=True):
            answers_NFP = convolution(bytes_NCL)
            starts_P = torch.arange(answers_NFP.shape[2], device=symbols_NL.device)
            beyond_NP = (starts_P > 0) & (starts_P + kernel > lengths_N1)
            found.append(answers_NFP.masked_fill(beyond_NP[:, None], -torch.inf).amax(2))
        features_NF = torch.cat(found, 1).relu()
        for highway in self.highways:
            features_NF = highway(features_NF)
        vectors_ND: Tensor = self.project(features_NF)
        return vectors_ND
