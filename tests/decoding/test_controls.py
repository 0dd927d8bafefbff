"""Controls of decoding against the logits processors and the beam of transformers, and the laws that hold with them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.decoding import (
    ControlledArrays,
    ControlledStepper,
    Controls,
    Greedy,
    LookupDrafter,
    Sample,
    beam_search,
    generate,
    generate_with_drafts,
    stream_with_drafts,
)
from chainrule.decoding.controls import Control, MinLength, NoRepeatedNgrams, RepetitionPenalty
from chainrule.decoding.over_arrays import beam_search_arrays, greedy, stream_arrays
from chainrule.errors import ConfigError
from chainrule.models.ngram import Ngram, NgramConfig
from chainrule.types import Vocabulary
from marian import EOS, START, HuggingFaceStepper, marian, until_eos
from toy import PrefillingTable, TableModel

UNK = 2
OPTIONS = [
    Controls(repetition_penalty=1.7),
    Controls(repetition_penalty=0.6),
    Controls(no_repeat_ngram_size=1),
    Controls(no_repeat_ngram_size=2),
    Controls(no_repeat_ngram_size=3),
    Controls(no_unk=True),
    Controls(min_new_tokens=4),
    Controls(1.3, 2, True, 3),
]
"""Each control separately, and all together."""


def control(model: TableModel, options: Controls, eos: int | None = EOS, prompt: int = 0) -> ControlledStepper:
    return ControlledStepper(model, options.chain(eos=eos, unk=UNK, prompt=prompt), eos)


# Against transformers


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 12), st.integers(1, 4), st.floats(0.2, 5))
def test_scores_are_those_of_transformers(seed: int, R: int, T: int, size: int, penalty: float) -> None:
    from transformers import (
        MinLengthLogitsProcessor,
        NoRepeatNGramLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
    )

    random = np.random.default_rng(seed)
    text_RT = random.integers(0, 6, (R, T))
    pairs: list[tuple[Control, Any]] = [
        (RepetitionPenalty(penalty), RepetitionPenaltyLogitsProcessor(penalty)),
        (NoRepeatedNgrams(size), NoRepeatNGramLogitsProcessor(size)),
        (MinLength(size + 3, 1), MinLengthLogitsProcessor(size + 3, 1)),
    ]
    scores_RV = torch.from_numpy(random.normal(size=(R, 6)).astype(np.float32))  # some above 0
    for scores in (scores_RV, scores_RV.log_softmax(1)):
        for ours, theirs in pairs:
            expected = theirs(torch.from_numpy(text_RT), scores.clone())
            changed, array = scores.clone(), scores.numpy().copy()
            ours.apply(text_RT, changed)
            ours.apply(text_RT, array)
            assert torch.equal(changed, expected)
            np.testing.assert_allclose(array, expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("options", [*OPTIONS[:2], *OPTIONS[3:5], OPTIONS[6], Controls(1.3, 2, False, 3)], ids=str)
def test_a_search_finds_what_that_of_transformers_finds(options: Controls, width: int) -> None:
    model = marian(1)
    biases_1V = torch.zeros_like(model.final_logits_bias)
    biases_1V[0, START] = -1e4  # they count the token before the text as part of it, so it must not occur in the text
    before, model.final_logits_bias = model.final_logits_bias, biases_1V
    torch.manual_seed(3)
    source_BS = torch.randint(2, 60, (4, 7))
    mask_BS = torch.ones_like(source_BS)
    named = {"min_new_tokens": options.min_new_tokens, "no_repeat_ngram_size": options.no_repeat_ngram_size}
    logits = {} if width > 1 else {"renormalize_logits": False}
    theirs = model.generate(
        input_ids=source_BS, attention_mask=mask_BS, num_beams=width, do_sample=False, early_stopping=False,
        max_new_tokens=12, use_cache=False, repetition_penalty=options.repetition_penalty if width > 1 else 1.0,
        **named, **logits,
    ).tolist()  # fmt: skip
    ours = HuggingFaceStepper(model)
    # Their greedy search penalises unnormalised logits, of which log p knows nothing.
    used = options if width > 1 else Controls(1.0, options.no_repeat_ngram_size, False, options.min_new_tokens)
    stepper = ControlledStepper(ours, used.chain(eos=EOS, unk=None), EOS)
    with torch.inference_mode():
        state = stepper.start((source_BS, mask_BS))
    prompt_B1 = torch.full((4, 1), START)
    found = beam_search(stepper, state, prompt_B1, eos=EOS, beams=width, max_new_tokens=12)
    model.final_logits_bias = before
    assert [row[0].tokens for row in found] == [until_eos(tokens[1:]) for tokens in theirs]


# What the controls promise


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_no_text_breaks_its_controls(seed: int, beams: int) -> None:
    stepper = control(TableModel(6, seed), Controls(1.0, 2, True, 6), prompt=2)
    prompt = [3, 4]
    options = {"eos": EOS, "beams": beams, "max_new_tokens": 20, "num_return_sequences": beams}
    for found in beam_search(stepper, stepper.start(1), torch.tensor([[EOS, *prompt]]), **options)[0]:  # type: ignore[arg-type]
        text = [*prompt, *found.tokens]
        assert UNK not in found.tokens
        assert EOS not in found.tokens[:6]
        pairs = list(itertools.pairwise(text))
        assert len(set(pairs)) == len(pairs)


def test_the_end_is_possible_where_nothing_else_is() -> None:
    model = TableModel(4, 1)
    found = generate(
        control(model, Controls(no_repeat_ngram_size=1, min_new_tokens=3)),
        eos=EOS, bos=EOS, max_new_tokens=9, choose=Greedy(),
    )[0].tolist()  # fmt: skip
    assert sorted(found[:3]) == [1, 2, 3]
    assert found[3:] == [EOS]
    endless = control(model, Controls(no_repeat_ngram_size=1), eos=None)
    drawn = generate(endless, eos=None, bos=EOS, max_new_tokens=9, choose=Sample(generator=torch.Generator()))[0]
    assert sorted(drawn[:4].tolist()) == [0, 1, 2, 3]
    assert len(drawn) == 9


# Laws


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_width_one_is_greedy_search(seed: int, options: Controls) -> None:
    stepper = control(TableModel(7, seed), options)
    greedy_T = generate(stepper, eos=EOS, bos=EOS, max_new_tokens=15, choose=Greedy())[0]
    found = beam_search(stepper, stepper.start(1), torch.tensor([[EOS]]), eos=EOS, beams=1, max_new_tokens=15)[0]
    assert found[0].tokens == greedy_T.tolist()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_drafts_change_nothing(options: Controls) -> None:
    for seed in range(4):
        stepper = control(PrefillingTable(5, seed), options, prompt=2)
        prompt_1T = torch.tensor([[EOS, 1, 3]])
        for make in (Greedy, lambda: Sample(generator=torch.Generator().manual_seed(5))):
            plain_T = generate(stepper, prompt_1T[0, 1:], eos=EOS, bos=EOS, max_new_tokens=30, choose=make())[0]
            named = {"eos": EOS, "max_new_tokens": 30, "choose": make()}
            drafter = LookupDrafter(shortest=1)
            drafted = stream_with_drafts(stepper, stepper.start(1), prompt_1T, drafter, **named)  # type: ignore[arg-type]
            assert list(drafted) == plain_T.tolist()


def test_drafts_change_nothing_where_the_model_rewinds() -> None:
    from builders import small_model

    model = small_model("transformer").double().eval()  # type: ignore[attr-defined]
    stepper = control(model, Controls(1.5, 3))
    prompt_1T = torch.tensor([[EOS, 1, 3, 1]])
    plain_T = generate(stepper, prompt_1T[0, 1:], eos=None, bos=EOS, max_new_tokens=30, choose=Greedy())[0]
    found, statistics = generate_with_drafts(stepper, stepper.start(1), prompt_1T, LookupDrafter(shortest=1), None, 30)
    assert found == plain_T.tolist()
    assert statistics.proposed > statistics.accepted  # some drafts were dropped


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_several_rows_are_the_single_ones(options: Controls) -> None:
    stepper = control(TableModel(7, 5), options, prompt=1)
    prompts_BT = torch.tensor([[EOS, 1], [EOS, 2], [EOS, 3], [EOS, 6]])
    named: dict[str, Any] = {"eos": EOS, "beams": 3, "max_new_tokens": 10, "num_return_sequences": 2}
    together = beam_search(stepper, stepper.start(4), prompts_BT, **named)
    for prompt_T, found in zip(prompts_BT, together, strict=True):
        assert beam_search(stepper, stepper.start(1), prompt_T[None], **named)[0] == found


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_arrays_are_controlled_like_tensors(options: Controls) -> None:
    V, eos = 12, 1
    counts_V = 40 * np.arange(2, V + 2)
    tokens = np.random.default_rng(3).permutation(np.repeat(np.arange(V), counts_V))
    vocabulary = Vocabulary(V, eos, counts_V)
    model = Ngram.estimate(NgramConfig(order=3, smoothing="witten-bell"), vocabulary, tokens, tokens[:100])
    controls = options.chain(eos=eos, unk=UNK, prompt=2)
    stepper, arrays = ControlledStepper(model, controls, eos), ControlledArrays(model.arrays, controls, eos)
    named = {"eos": eos, "bos": eos, "max_new_tokens": 15}
    (expected,) = generate(stepper, torch.tensor([3, 4]), choose=Greedy(), **named)  # type: ignore[arg-type]
    assert [row[0] for row in stream_arrays(arrays, [3, 4], choose=greedy, **named)] == expected.tolist()  # type: ignore[arg-type]
    beam: dict[str, Any] = {"eos": eos, "beams": 3, "max_new_tokens": 8}
    theirs = beam_search(stepper, stepper.start(1), torch.tensor([[eos, 3, 4]]), **beam)[0][0]
    ours = beam_search_arrays(arrays, [eos, 3, 4], **beam)[0]
    assert ours.tokens == theirs.tokens
    assert math.isclose(ours.score, theirs.score, rel_tol=1e-5)


def test_without_options_there_are_no_controls() -> None:
    assert Controls().chain(eos=EOS, unk=UNK) == []
    assert Controls(no_unk=True).chain(eos=EOS, unk=None) == []
    assert Controls(min_new_tokens=3).chain(eos=None, unk=UNK) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Controls(repetition_penalty=0.0), "repetition_penalty is 0.0; expected a number above 0 (1: no penalty)"),
        (Controls(no_repeat_ngram_size=-1), "no_repeat_ngram_size is -1; expected at least 0 (0: no such control)"),
        (Controls(min_new_tokens=-2), "min_new_tokens is -2; expected at least 0 (0: no such control)"),
    ],
)
def test_refused_values(options: Controls, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        options.check_controls()
    assert str(refused.value) == message
