"""Generation against a plain Python loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chainrule.decoding import Greedy, Sample, generate, stream
from chainrule.errors import ConfigError
from toy import PrefillingTable, TableModel

EOS = 0


def generate_by_loop(model: TableModel, prompt: list[int], limit: int, stop: bool = True) -> list[int]:
    """Greedy search that scores every prefix from its beginning."""
    tokens: list[int] = []
    while len(tokens) < limit and not (stop and tokens and tokens[-1] == EOS):
        state = model.start(1)
        for token in [EOS, *prompt, *tokens]:
            row_1V, state = model.step(state, torch.tensor([token]))
        tokens.append(max(range(model.vocab_size), key=lambda v: float(row_1V[0, v])))
    return tokens


@pytest.mark.parametrize("prompt", [[], [3], [1, 2, 3, 1]])
@pytest.mark.parametrize("seed", range(5))
def test_greedy_generation_equals_the_loop(seed: int, prompt: list[int]) -> None:
    for model in (TableModel(5, seed), PrefillingTable(5, seed)):
        prompt_T = torch.tensor(prompt) if prompt else None
        tokens = generate(model, prompt_T, eos=EOS, bos=EOS, max_new_tokens=15, choose=Greedy())[0]
        assert tokens.tolist() == generate_by_loop(model, prompt, 15)
        tokens = generate(model, prompt_T, eos=None, bos=EOS, max_new_tokens=15, choose=Greedy())[0]
        assert tokens.tolist() == generate_by_loop(model, prompt, 15, stop=False)


def test_an_empty_prompt_equals_no_prompt() -> None:
    model = TableModel(9, 4)
    empty_T = torch.empty(0, dtype=torch.int64)
    found = [
        generate(model, prompt_T, eos=None, bos=EOS, max_new_tokens=7, choose=Greedy())[0].tolist()
        for prompt_T in (None, empty_T)
    ]
    assert found[0] == found[1]


def test_the_prompt_is_read_once_by_prefill() -> None:
    model = PrefillingTable(9, 4)
    options = {"eos": None, "bos": EOS, "max_new_tokens": 6, "choose": Greedy(), "num_return_sequences": 4}
    generate(model, torch.tensor([1, 2, 3, 4, 5]), **options)  # type: ignore[arg-type]
    assert model.steps == 6  # one prefill and five steps: the last chosen token is not read


class ScriptedChooser:
    """Chooses the given tokens, one list per step."""

    def __init__(self, *steps: list[int]) -> None:
        self.steps = iter(steps)

    def __call__(self, log_probs_BV: Tensor) -> Tensor:
        return torch.tensor(next(self.steps))


def test_an_ended_row_repeats_eos_until_all_rows_have_ended() -> None:
    script = [[1, 2, 0], [0, 3, 5], [4, 4, 4], [6, 0, 6], [1, 1, 1]]
    options = {"eos": EOS, "bos": EOS, "max_new_tokens": 9, "num_return_sequences": 3}
    streamed = list(stream(TableModel(8), choose=ScriptedChooser(*script), **options))  # type: ignore[arg-type]
    assert [token_B.tolist() for token_B in streamed] == [[1, 2, 0], [0, 3, 0], [0, 4, 0], [0, 0, 0]]
    collected = generate(TableModel(8), choose=ScriptedChooser(*script), **options)  # type: ignore[arg-type]
    assert [tokens.tolist() for tokens in collected] == [[1, 0], [2, 3, 4, 0], [0]]


def test_a_stream_yields_tokens_at_once_and_keeps_the_callers_mode() -> None:
    model = TableModel(9, 4)
    tokens = stream(model, eos=None, bos=EOS, max_new_tokens=5, choose=Greedy())
    next(tokens)
    assert model.steps == 1
    assert not torch.is_inference_mode_enabled()
    next(tokens)
    assert model.steps == 2


def test_sequences_are_independent_samples_that_a_seed_repeats() -> None:
    def sample(seed: int) -> list[list[int]]:
        choose = Sample(generator=torch.Generator().manual_seed(seed))
        options = {"eos": None, "bos": EOS, "max_new_tokens": 8, "num_return_sequences": 3}
        return [t.tolist() for t in generate(TableModel(9, 1), choose=choose, **options)]  # type: ignore[arg-type]

    first = sample(1)
    assert first == sample(1)
    assert first != sample(2)
    assert first[0] != first[1] != first[2]


def test_wrong_counts_raise_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        stream(TableModel(3), eos=0, bos=0, max_new_tokens=0, choose=Greedy())
    assert str(caught.value) == "max_new_tokens is 0; expected at least 1"
    with pytest.raises(ConfigError) as caught:
        stream(TableModel(3), eos=0, bos=0, max_new_tokens=1, choose=Greedy(), num_return_sequences=0)
    assert str(caught.value) == "num_return_sequences is 0; expected at least 1"
