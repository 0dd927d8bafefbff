"""The fast autoregressive Transformer: skipped source words, and the direction of reading."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from builders import small_translator, some_source, some_tokens, some_vocabulary
from chainrule.base.kernels import kernels_suspended
from chainrule.errors import ConfigError
from chainrule.layers.attention.positions import sinusoidal_table
from chainrule.models.fat import Fat, FatConfig, SourceSelection
from chainrule.models.options import live_options
from chainrule.types import Source

CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}
LENGTHS = [6, 1, 9, 4]
COUNTS = some_vocabulary().counts_V.tolist()  # 1000, 250, 111, 62 … of the words 0, 1, 2, 3 …
DIRECTIONS = ("both", "left-to-right", "right-to-left")


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def small(**options: Any) -> Fat:
    model = small_translator("fat", **{"encoder_layers": 2, **options})
    assert isinstance(model, Fat)
    return model


def with_options(model: Fat, **options: Any) -> Fat:
    """The same model with other values of its live options."""
    model.config = model.config.model_copy(update=options)
    return model


def by_hand(model: Fat, source: Source, kept_BS: Tensor) -> Tensor:
    """The encoder row by row over the whole source, skipped words masked in every score -> BSD."""
    rows = []
    for tokens_S, kept_S in zip(source.tokens_BS, kept_BS, strict=True):
        S = len(tokens_S)
        stream_SD = model.source_embedding(tokens_S) + 0.02 * sinusoidal_table(S, 8)
        for block in model.encoder:
            stream_SD = block_by_hand(block, stream_SD, kept_S, model.config.direction)
        rows.append(model.norms[0](stream_SD))
    return torch.stack(rows)


def block_by_hand(block: Any, stream_SD: Tensor, kept_S: Tensor, direction: str) -> Tensor:
    """x + slow attention(norm x), x + feedforward(norm x), with the table of all sums."""
    layer, inputs_SD = block.attention, block.norms[0](stream_SD)
    S, D = inputs_SD.shape
    query_SHE, key_SHE = layer.project_pairs(inputs_SD).view(S, 2, layer.heads, -1).unbind(1)
    energies_SSH = (query_SHE[:, None] + key_SHE).relu().norm(dim=3) / query_SHE.shape[2] ** 0.5
    place_S = torch.arange(S)
    hidden_SS = ~kept_S.expand(S, S)
    if direction == "left-to-right":
        hidden_SS = hidden_SS | (place_S > place_S[:, None])
    if direction == "right-to-left":
        hidden_SS = hidden_SS | (place_S < place_S[:, None])
    weights_SSH = energies_SSH.masked_fill(hidden_SS[..., None], -torch.inf).softmax(1).nan_to_num()
    value_SD, gate_SD = layer.project_values(inputs_SD).chunk(2, 1)
    mixed_SHE = torch.einsum("ijh,jhe->ihe", weights_SSH, value_SD.view(S, layer.heads, -1))
    stream_SD = stream_SD + layer.project_out(mixed_SHE.reshape(S, D) * gate_SD.sigmoid())
    return stream_SD + block.narrow(block.widen(block.norms[1](stream_SD)).relu().square())


def kept_mask(source: Source, threshold: int, eos: int = 0) -> Tensor:
    """The kept positions of a source, word by word."""
    rows = [
        [real and (word == eos or COUNTS[word] >= threshold) for word, real in zip(*row, strict=True)]
        for row in zip(source.tokens_BS.tolist(), source.mask_BS.tolist(), strict=True)
    ]
    return torch.tensor(rows)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("threshold", [0, 70, 120, 10**6])
def test_skipped_words_are_as_if_masked(direction: str, threshold: int) -> None:
    model = small(direction=direction, skip="always", threshold=threshold)
    source = some_source(LENGTHS, padding=2)
    kept_BS = kept_mask(source, threshold)
    found_ND = model.encode(source, model.select_positions(source))
    torch.testing.assert_close(found_ND, by_hand(model, source, kept_BS)[kept_BS], **CLOSE)


@pytest.mark.parametrize("threshold", [70, 10**6])
def test_the_decoder_sees_kept_words_at_their_positions(threshold: int) -> None:
    model, tokens_BT = small(skip="always", threshold=threshold), some_tokens(4, 5)
    source = some_source(LENGTHS, padding=2)
    kept_BS = kept_mask(source, threshold)
    weights_BTS = model.attention(tokens_BT, source)
    assert not weights_BTS.masked_select(~kept_BS[:, None]).any()
    torch.testing.assert_close(weights_BTS.sum(2), torch.ones(4, 5))
    encoded_BSD = by_hand(model, source, kept_BS)
    block: Any = model.decoder[0]
    stream_ND = model._embed(model.shift_right(tokens_BT), 0)
    asked_BTD = block.norms[1](block.attend_to_past(stream_ND, 4, None)[0]).view(4, 5, -1)
    for row in range(4):
        table_TS = torch.arange(encoded_BSD.shape[1]) - torch.arange(5)[:, None]
        bias_TSH = block.source.table_UH[block.source.bucket_O[table_TS + model.config.context - 1]]
        query_THE = block.source.project_query(asked_BTD[row]).view(5, 2, -1)
        key_SHE = block.source.project_memory(encoded_BSD[row])[:, :8].view(-1, 2, 4)
        omega_TSH = torch.einsum("the,she->tsh", query_THE, key_SHE) / 2 + bias_TSH + block.source.bias_H
        scores_TSH = omega_TSH.tanh() * block.source.log_sharpness_H.exp()
        expected_TS = scores_TSH.masked_fill(~kept_BS[row, :, None], -torch.inf).softmax(1).mean(2)
        torch.testing.assert_close(weights_BTS[row], expected_TS, **CLOSE)


def test_a_threshold_that_skips_nothing_changes_nothing() -> None:
    source, tokens_BT = some_source(LENGTHS, padding=3), some_tokens(4, 5)
    never = small()
    expected_BT = never.log_probs(tokens_BT, source)
    for options in (
        {"threshold": 0},
        {"threshold_share": 0.0},
        {"threshold": 60},
    ):  # the rarest word here occurs 62 times
        found_BT = with_options(small(), skip="always", **options).log_probs(tokens_BT, source)
        assert torch.equal(found_BT, expected_BT)
    # Without padding nothing is gathered, and the rows are the same.
    for row, length in enumerate(LENGTHS):
        alone = Source(*(part[row : row + 1, : length + 1] for part in source))
        assert never.select_positions(alone).index_N is None
        torch.testing.assert_close(
            never.log_probs(tokens_BT[row : row + 1], alone), expected_BT[row : row + 1], **CLOSE
        )


def test_the_share_of_words_read_falls_with_the_threshold() -> None:
    model, source = small(skip="always"), some_source([40] * 8)

    def read(threshold: int) -> int:
        return int(with_options(model, threshold=threshold).select_positions(source).rows.lengths_B.sum())

    for threshold in (0, 63, 112, 251):
        assert read(threshold) == int(kept_mask(source, threshold).sum())
    assert read(0) == 8 * 41 > read(63) > read(112) > read(251) == 8


def test_skipped_words_are_not_computed() -> None:
    model, source = small(skip="always", threshold=70), some_source(LENGTHS, padding=2)
    sizes: list[tuple[int, ...]] = []
    block: Any = model.encoder[0]
    block.attention.project_pairs.register_forward_hook(lambda module, given, out: sizes.append(tuple(out.shape)))
    with kernels_suspended():
        model.begin(source, stepping=True)
    assert sizes == [(int(kept_mask(source, 70).sum()), 16)]


def test_a_row_is_never_empty() -> None:
    model, source = small(skip="always", threshold=10**6), some_source(LENGTHS, padding=1)
    kept: SourceSelection = model.select_positions(source)
    assert kept.rows.lengths_B.tolist() == [1, 1, 1, 1]
    assert kept.positions_BS is not None
    assert kept.positions_BS.tolist() == [[6], [1], [9], [4]]  # the positions of <eos>
    assert bool(model.log_probs(some_tokens(4, 5), source).isfinite().all())


@pytest.mark.parametrize(("skip", "in_training", "after"), [("never", 0, 0), ("training", 39, 0), ("always", 39, 39)])
def test_when_words_are_skipped(skip: str, in_training: float, after: float) -> None:
    model = with_options(small(), skip=skip, threshold_share=3.0)
    assert model.train().skip_threshold() == in_training
    assert model.eval().skip_threshold() == after
    assert with_options(model, threshold=7).train().skip_threshold() == (7 if in_training else 0)


def test_counts_and_size_are_those_of_the_source() -> None:
    model = small(separate=True, skip="always", threshold_share=2.0)
    assert model.skip_threshold() == 30.0
    assert model.source_counts.tolist() == some_vocabulary(15).counts_V.tolist()


def test_options_of_skipping_are_live() -> None:
    assert {option.name for option in live_options(FatConfig)} == {"skip", "threshold_share", "threshold"}
    model, source, tokens_BT = small(), some_source(LENGTHS), some_tokens(4, 5)
    before_BT = model.log_probs(tokens_BT, source)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    changed_BT = with_options(model, skip="always", threshold=70).log_probs(tokens_BT, source)
    assert float((changed_BT - before_BT).abs().max()) > 1e-3
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert torch.equal(with_options(model, skip="never").log_probs(tokens_BT, source), before_BT)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_one_direction_ignores_the_other_side(direction: str) -> None:
    model, source = small(direction=direction), some_source([7])
    before_SD = model.encode(source, model.select_positions(source))
    for place in range(7):
        changed_BS = source.tokens_BS.clone()
        changed_BS[0, place] = changed_BS[0, place] % 3 + 1
        changed = Source(changed_BS, source.mask_BS)
        moved_S = (model.encode(changed, model.select_positions(changed)) - before_SD).abs().amax(1) > 1e-6
        expected = {"both": slice(None), "left-to-right": slice(place, None), "right-to-left": slice(place + 1)}
        assert moved_S.nonzero().flatten().tolist() == list(range(8))[expected[direction]]


def test_the_state_has_constant_size() -> None:
    model, source = small(), some_source(LENGTHS)

    def size(state: Any) -> int:
        return sum(part.numel() for past in state.past for part in past)

    with kernels_suspended():
        state = model.start(source)
        sizes = [size(state)]
        for token_B in some_tokens(4, 6).unbind(1):
            _, state = model.step(state, token_B)
            sizes.append(size(state))
    assert len(set(sizes)) == 1
    assert state.length == 6


def test_more_tokens_than_the_window_are_refused() -> None:
    model = small(context=8)
    message = (
        "got 9 tokens, but the model reads at most model.context = 8; shorten the line or train with a larger context"
    )
    with pytest.raises(ConfigError) as error:
        model.start(some_source([8]))
    assert str(error.value) == message
    with pytest.raises(ConfigError) as error:
        model.log_probs(some_tokens(1, 9), some_source([3]))
    assert str(error.value) == message
