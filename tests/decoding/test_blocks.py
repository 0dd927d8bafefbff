"""Modes of language models with a parallel branch: blocks in one pass each, and drafts of the model itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from builders import small_model
from chainrule.decoding import (
    Chooser,
    DraftStatistics,
    FallbackDrafter,
    Greedy,
    Sample,
    generate,
    generate_with_drafts,
    stream_blocks,
)
from chainrule.decoding import speculative as module
from chainrule.errors import ConfigError

EOS, BLOCK = 0, 4
PROMPT_T = torch.tensor([3, 5, 2, 7, 7, 1])


def hybrid(seed: int = 0, **options: Any) -> Any:
    return small_model("hybrid-lm", seed=seed, **options).double()


def sampler() -> Chooser:
    return Sample(0.9, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("choose", [Greedy, sampler])
@pytest.mark.parametrize("options", [{"gamma": 0.0}, {"gamma": 0.6}, {"mixing": "gated", "block": 7, "context": 3}])
@pytest.mark.parametrize("seed", range(3))
def test_drafts_of_the_model_itself_do_not_change_the_text(
    seed: int, options: dict[str, Any], choose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_ACCEPTED_OWN", 0.0)  # without pauses
    monkeypatch.setattr(module, "MIN_LOG_PROB", -50.0)
    model = hybrid(seed, **options)
    (expected,) = generate(model, PROMPT_T, eos=None, bos=EOS, max_new_tokens=30, choose=choose())
    prompt_1T = torch.cat([torch.tensor([EOS]), PROMPT_T])[None]
    found, statistics = generate_with_drafts(
        model, model.start(1), prompt_1T, FallbackDrafter(), None, 30, choose(), own=True
    )
    assert found == expected.tolist()
    assert statistics.proposed > 10
    assert statistics.passes + statistics.accepted == 30


def test_a_model_that_is_its_parallel_branch_accepts_its_drafts() -> None:
    """At γ = 1 the distribution of a block does not depend on its tokens, so the first draft of a block is right."""
    model = hybrid(gamma=1.0)
    found, statistics = generate_with_drafts(
        model, model.start(1), torch.tensor([[EOS]]), FallbackDrafter(), None, 5 * BLOCK, own=True
    )
    (expected,) = generate(model, eos=None, bos=EOS, max_new_tokens=5 * BLOCK, choose=Greedy())
    assert found == expected.tolist()
    assert statistics.accepted > 0


@pytest.mark.parametrize("rows", [1, 3])
def test_blocks_take_one_pass_each_and_have_the_tokens_of_the_parallel_branch(rows: int) -> None:
    model, statistics = hybrid(), DraftStatistics()
    blocks = list(
        stream_blocks(
            model,
            PROMPT_T,
            eos=None,
            bos=EOS,
            max_new_tokens=3 * BLOCK + 1,
            choose=Greedy(),
            num_return_sequences=rows,
            statistics=statistics,
        )
    )
    assert [tuple(block.shape) for block in blocks] == [(rows, BLOCK)] * 3 + [(rows, 1)]
    assert (statistics.passes, statistics.emitted) == (4, 3 * BLOCK + 1)
    text = [EOS, *PROMPT_T.tolist()]
    for block_BT in blocks:
        with torch.no_grad():
            expected = model.predict_block(torch.tensor([text]))[0].argmax(1).tolist()
        assert block_BT.tolist() == [expected[: block_BT.shape[1]]] * rows
        text += block_BT[0].tolist()


def test_a_stream_of_blocks_ends_where_the_last_row_does() -> None:
    model, wanted = hybrid(), iter([[4, EOS, 5, 6], [1, 2, 3, 4], [EOS, 1, 1, 1], [7, 8, EOS, EOS]])

    def choose(log_probs_BV: torch.Tensor) -> torch.Tensor:
        return torch.tensor([next(wanted) for _ in range(2)]).flatten()

    blocks = list(
        stream_blocks(model, PROMPT_T, eos=EOS, bos=EOS, max_new_tokens=40, choose=choose, num_return_sequences=2)
    )
    assert torch.cat(blocks, 1).tolist() == [[4, EOS, 5, 6, EOS, 1, 1], [1, 2, 3, 4, 7, 8, EOS]]


def test_other_models_predict_token_by_token() -> None:
    model = small_model("lstm")
    with pytest.raises(TypeError, match="predicts token by token"):
        model.predict_block(torch.tensor([[EOS]]))
    with pytest.raises(TypeError, match="predicts token by token"):
        model.predict_rest(model.start(1), torch.tensor([EOS]))
    with pytest.raises(ConfigError, match="expected at least 1"):
        stream_blocks(hybrid(), PROMPT_T, eos=None, bos=EOS, max_new_tokens=0, choose=Greedy())
