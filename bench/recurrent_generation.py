"""Steps of recurrent models on one thread against torch modules in a plain loop, on the same weights.

Language models write one text greedily: 2 × 200 units with 10,000 words, and 2 × 256 with 65 characters, as lstm and
gru. The peer is nn.Embedding, nn.LSTM or nn.GRU, nn.Linear, log_softmax and argmax, without gradients. The gru of
torch applies the reset gate after the product, so the project's model is given that form here.

`seq2seq-attention` translates with 5 beams. The peer is a bidirectional nn.LSTM and a batched beam over nn.LSTMCell and
nn.Linear. All must write the same tokens. Weights of 8 bits are measured against the same peer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Figure, alternate, arguments, begin, report, speed, speed_up
from torch import Tensor, nn

from chainrule.base.devices import threads
from chainrule.checkpoint.build import build_model, round_weights
from chainrule.config import RunConfig, parse
from chainrule.decoding import Greedy, beam_search, generate
from chainrule.layers.recurrent.cells import Gru
from chainrule.layers.recurrent.stack import Recurrence
from chainrule.types import Source, Vocabulary

BOS, BEAMS, SENTENCES, SOURCE, WORDS = 0, 5, 8, 20, 8000
SHAPES = {"2 × 200, 10,000 words": (10_000, 200), "2 × 256, 65 characters": (65, 256)}
GATES = {"lstm": (1, 2, 0, 3), "gru": (2, 1, 0)}
"""The blocks of the project in the order of torch: g i f o as i f g o, and n z r as r z n."""


def project_model(kind: str, size: int, width: int) -> Any:
    """A language model with random weights, large enough that it does not repeat one token."""
    torch.manual_seed(3)
    values = {"model": {"name": kind, "embedding": width, "hidden": width, "layers": 2}}
    model: Any = build_model(parse(RunConfig, values), Vocabulary(size, BOS, np.ones(size, np.int64)))
    if kind == "gru":
        model.features.recurrence = Recurrence("gru", width, width, 2, reset="after")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += parameter.shape[-1] ** -0.5 * torch.randn_like(parameter)
    return model.eval()


def _blocks(weight_G: Tensor, kind: str) -> Tensor:
    """The gates of a parameter in the order of torch."""
    parts = weight_G.chunk(len(GATES[kind]))
    return torch.cat([parts[place] for place in GATES[kind]])


class Peer(nn.Module):
    """Torch modules with the weights of a language model."""

    def __init__(self, model: Any, kind: str) -> None:
        super().__init__()
        width = model.config.hidden
        self.embedding, self.output = model.embedding, nn.Linear(width, model.vocab_size)
        self.layers = (nn.LSTM if kind == "lstm" else nn.GRU)(width, width, 2, batch_first=True)
        self.output.weight.data.copy_(model.output.weight_VD)
        self.output.bias.data.copy_(model.output.bias_V)
        for depth, layer in enumerate(model.features.recurrence.layers):
            own = dict(self.layers.named_parameters())
            own[f"weight_ih_l{depth}"].data.copy_(_blocks(layer.weight_input_GD, kind))
            own[f"weight_hh_l{depth}"].data.copy_(_blocks(layer.weight_hidden_GH, kind))
            own[f"bias_ih_l{depth}"].data.copy_(_blocks(layer.bias_G, kind))
            own[f"bias_hh_l{depth}"].data.zero_()
            if isinstance(layer.cell, Gru):
                own[f"bias_hh_l{depth}"].data[2 * width :] = layer.extra
        self.eval()

    @torch.no_grad()
    def write(self, length: int) -> list[int]:
        token_11, state, written = torch.tensor([[BOS]]), None, list[int]()
        for _ in range(length):
            hidden_11D, state = self.layers(self.embedding(token_11), state)
            log_probs_1V = self.output(hidden_11D[:, -1]).log_softmax(-1)
            token_11 = log_probs_1V.argmax(-1, keepdim=True)
            written.append(int(token_11))
        return written


def project_tokens(model: Any, length: int) -> list[int]:
    with threads(1):
        (written,) = generate(model, eos=None, bos=BOS, max_new_tokens=length, choose=Greedy())
    tokens: list[int] = written.tolist()
    return tokens


def in_8_bits(model: Any) -> Any:
    """A copy that predicts with 8-bit weights."""
    rounded = copy.deepcopy(model)
    round_weights(rounded)
    return rounded


def language_models(length: int, repeats: int) -> list[Figure]:
    """Greedy generation of one text."""
    figures = []
    for kind in ("lstm", "gru"):
        for shape, (size, width) in SHAPES.items():
            model = project_model(kind, size, width)
            peer = Peer(model, kind)
            if project_tokens(model, length) != peer.write(length):
                raise SystemExit(f"{kind}, {shape}: the tokens differ from those of torch")
            contestants: dict[str, Callable[[], object]] = {
                "float32": partial(project_tokens, model, length),
                "int8": partial(project_tokens, in_8_bits(model), length),
                "torch": partial(peer.write, length),
            }
            times = alternate(contestants, repeats)
            figures += [_figure(times, f"{kind} {shape}, {name}", name, length) for name in ("float32", "int8")]
    return figures


def _figure(times: Any, label: str, name: str, tokens: int) -> Figure:
    note = "same tokens" if name == "float32" else ""
    rates = speed(times, name, tokens), "tokens/s", speed(times, "torch", tokens)
    return Figure(label, *rates, speed_up(times, name, "torch"), at_least=3.0, note=note)


class PeerTranslator:
    """A beam of torch modules with the weights of a `seq2seq-attention` of one lstm layer and the general score."""

    def __init__(self, model: Any) -> None:
        layer, hidden = model.decoder.layers[0], model.config.hidden
        self.model, self.cell = model, nn.LSTMCell(model.config.embedding + hidden, hidden)
        into_GD = torch.cat([layer.weight_input_GD, model.feed.weight], 1)
        self.cell.weight_ih.data.copy_(_blocks(into_GD, "lstm"))
        self.cell.weight_hh.data.copy_(_blocks(layer.weight_hidden_GH, "lstm"))
        self.cell.bias_ih.data.copy_(_blocks(layer.bias_G, "lstm"))
        self.cell.bias_hh.data.zero_()
        self.encoder = nn.LSTM(model.config.embedding, hidden // 2, bidirectional=True, batch_first=True)
        for side, suffix in ((model.encoder.rightward, ""), (model.encoder.leftward, "_reverse")):
            own, layer = dict(self.encoder.named_parameters()), side[0].layers[0]
            own[f"weight_ih_l0{suffix}"].data.copy_(_blocks(layer.weight_input_GD, "lstm"))
            own[f"weight_hh_l0{suffix}"].data.copy_(_blocks(layer.weight_hidden_GH, "lstm"))
            own[f"bias_ih_l0{suffix}"].data.copy_(_blocks(layer.bias_G, "lstm"))
            own[f"bias_hh_l0{suffix}"].data.zero_()

    @torch.no_grad()
    def write(self, source: Source, length: int) -> list[list[int]]:
        """The best of each beam; no sentence ends before `length` tokens, as in the project's search here."""
        model, A = self.model, len(source.tokens_BS)
        encoded_ASE, (last_2AE, _) = self.encoder(model.embedding(source.tokens_BS))
        memory = model.attend.make_memory(encoded_ASE, None)
        keys_RSX, values_RSU = (part.repeat_interleave(BEAMS, 0) for part in (memory.keys_ASX, memory.values_ASU))
        first = model.first_state(torch.cat(last_2AE.unbind(0), 1)).tanh().chunk(2, 1)
        h, c = (part.repeat_interleave(BEAMS, 0) for part in first)
        fed_RU, total_AK = torch.zeros_like(h), torch.full((A, BEAMS), -torch.inf)
        total_AK[:, 0] = 0
        token_R, text_RT = torch.full((A * BEAMS,), BOS), torch.empty(A * BEAMS, 0, dtype=torch.int64)
        for _ in range(length):
            h, c = self.cell(torch.cat([model.embedding(token_R), fed_RU], 1), (h, c))
            weights_R1S = torch.bmm(h.unsqueeze(1), keys_RSX.transpose(1, 2)).softmax(-1)
            context_RU = torch.bmm(weights_R1S, values_RSU).squeeze(1)
            fed_RU = (context_RU + model.attend.project_query(h)).tanh()
            log_probs_RV = model.output.log_probs(model._apply_bridge(fed_RU))
            scores_AN = (total_AK.view(-1, 1) + log_probs_RV).view(A, -1)
            total_AK, cell_AK = scores_AN.topk(BEAMS)
            rows_R = (cell_AK // WORDS + BEAMS * torch.arange(A)[:, None]).flatten()
            token_R = (cell_AK % WORDS).flatten()
            h, c, fed_RU = h[rows_R], c[rows_R], fed_RU[rows_R]
            text_RT = torch.cat([text_RT[rows_R], token_R[:, None]], 1)
        best: list[list[int]] = text_RT.view(A, BEAMS, -1)[:, 0].tolist()
        return best


def project_texts(model: Any, source: Source, length: int) -> list[list[int]]:
    with threads(1), torch.inference_mode():
        state = model.start(source)
        first_B1 = torch.full((len(source.tokens_BS), 1), BOS)
        found = beam_search(model, state, first_B1, eos=None, beams=BEAMS, max_new_tokens=length, length_penalty=1.0)
    return [best.tokens for best, *_ in found]


def translators(length: int, repeats: int) -> list[Figure]:
    """Translation with beams, of one sentence and of several."""
    torch.manual_seed(5)
    values = {"model": {"name": "seq2seq-attention", "embedding": 256, "hidden": 256}}
    model: Any = build_model(parse(RunConfig, values), Vocabulary(WORDS, BOS, np.ones(WORDS, np.int64)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 2 * parameter.shape[-1] ** -0.5 * torch.randn_like(parameter)
    rounded, peer = in_8_bits(model.eval()), PeerTranslator(model)
    figures = []
    for sentences in (1, SENTENCES):
        tokens_BS = torch.randint(1, WORDS, (sentences, SOURCE))
        source = Source(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool))
        if project_texts(model, source, length) != peer.write(source, length):
            raise SystemExit(f"{sentences} sentences: the texts differ from those of torch")
        contestants: dict[str, Callable[[], object]] = {
            "float32": partial(project_texts, model, source, length),
            "int8": partial(project_texts, rounded, source, length),
            "torch": partial(peer.write, source, length),
        }
        times, count = alternate(contestants, repeats), sentences * length
        label = f"{BEAMS} beams, {sentences} sentence(s)"
        figures += [_figure(times, f"{label}, {name}", name, count) for name in ("float32", "int8")]
    return figures


def main() -> None:
    options = begin(arguments(__doc__, repeats=7))
    torch.set_num_threads(1)
    length = 10 if options.quick else 200
    figures = language_models(length, options.repeats)
    figures += translators(5 if options.quick else 30, options.repeats)
    report(figures, options, peer="torch modules, one thread", tokens=length)


if __name__ == "__main__":
    main()
