"""The laws of translators that concern their source; `test_language_model_laws.py` has the others.

Laws that do not depend on the output layer are tested with the softmax only.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import (
    TRANSLATED_CASES,
    TRANSLATORS,
    Case,
    case_id,
    letter_pairs,
    one_output,
    rows_by_steps,
    small_config,
    small_options,
    small_translator,
    some_source,
    some_tokens,
    some_vocabulary,
    write_pairs,
)
from chainrule.base.kernels import kernels_suspended
from chainrule.checkpoint.build import build_model, load_model, save_model
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.decoding import beam_search
from chainrule.models.fat import Fat
from chainrule.models.seq2seq_transformer import EncoderDecoder
from chainrule.models.translator import ConditionedModel
from chainrule.registry import MODELS
from chainrule.text import text_of, train_tokenizer
from chainrule.training.fit import fit
from chainrule.types import Batch, Source, Vocabulary

EOS = 0
LENGTHS = [5, 1, 8, 3]
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}
ATTENDING = [name for name in TRANSLATORS if MODELS.get(name).make.attends]
every_output = pytest.mark.parametrize("case", TRANSLATED_CASES, ids=case_id)
every_model = pytest.mark.parametrize("case", one_output(TRANSLATED_CASES), ids=case_id)
every_name = pytest.mark.parametrize("name", TRANSLATORS)


def small(case: Case) -> Any:
    model, output, options = case
    return small_translator(model, output, **options)


def one_row(source: Source, number: int) -> Source:
    """One row without its padding."""
    length = int(source.mask_BS[number].sum())
    return Source(*(part[number : number + 1, :length] for part in source))


@pytest.fixture(autouse=True)
def _no_gradients(request: pytest.FixtureRequest) -> Any:
    with torch.set_grad_enabled("learns" in request.node.name or "training" in request.node.name):
        yield


@every_name
def test_training_features_give_the_log_probs(name: str) -> None:
    model, source = small_translator(name), some_source(LENGTHS)
    targets_BT = some_tokens(4, 6)
    hidden_BTD = model(Batch(model.shift_right(targets_BT), targets_BT, source=source)).hidden_BTD
    log_probs_N = model.output.log_prob(hidden_BTD.flatten(0, 1), targets_BT.flatten())
    torch.testing.assert_close(log_probs_N.view(4, 6), model.log_probs(targets_BT, source), **CLOSE)


@every_model
def test_another_source_gives_another_distribution(case: Case) -> None:
    model, source = small(case), some_source([6])
    before_BV, _ = model.step(model.start(source), torch.tensor([EOS]))
    for place in (0, 3, 5):
        changed_BS = source.tokens_BS.clone()
        changed_BS[0, place] = changed_BS[0, place] % 3 + 1
        after_BV, _ = model.step(model.start(Source(changed_BS, source.mask_BS)), torch.tensor([EOS]))
        assert float((after_BV.exp() - before_BV.exp()).abs().max()) > 1e-6, place


@every_model
def test_padding_of_the_source_changes_nothing(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(4, 7)
    source = some_source(LENGTHS)
    beyond_BS = some_tokens(4, 9)  # anything
    padded = Source(
        torch.cat([source.tokens_BS, beyond_BS], 1), torch.cat([source.mask_BS, torch.zeros_like(beyond_BS) > 0], 1)
    )
    torch.testing.assert_close(model.log_probs(tokens_BT, padded), model.log_probs(tokens_BT, source), **CLOSE)
    torch.testing.assert_close(
        rows_by_steps(ConditionedModel(model, padded), tokens_BT),
        rows_by_steps(ConditionedModel(model, source), tokens_BT),
        **CLOSE,
    )


@every_model
def test_sources_of_a_batch_do_not_affect_one_another(case: Case) -> None:
    model, tokens_BT, source = small(case), some_tokens(4, 7), some_source(LENGTHS)
    whole_BT = model.log_probs(tokens_BT, source)
    for number in range(4):
        alone_1T = model.log_probs(tokens_BT[number : number + 1], one_row(source, number))
        torch.testing.assert_close(whole_BT[number : number + 1], alone_1T, **CLOSE)
    order_B = torch.tensor([2, 0, 3, 1])
    mixed_BT = model.log_probs(tokens_BT[order_B], Source(*(part[order_B] for part in source)))
    torch.testing.assert_close(mixed_BT, whole_BT[order_B], **CLOSE)


@every_model
def test_forced_scores_are_the_sums_of_step_scores(case: Case) -> None:
    model, source, tokens_BT = small(case), some_source(LENGTHS), some_tokens(4, 7)
    state, token_B, total_B = model.start(source), torch.full((4,), EOS), torch.zeros(4)
    for next_B in tokens_BT.unbind(1):
        row_BV, state = model.step(state, token_B)
        total_B, token_B = total_B + row_BV.gather(1, next_B[:, None])[:, 0], next_B
    torch.testing.assert_close(total_B, model.log_probs(tokens_BT, source).sum(1), **CLOSE)


# Selections as a beam search makes them: rows are copied, reordered and dropped, sources get unequal shares or none.
WALK = [
    [0, 0, 1, 1, 2, 2],
    [1, 0, 2, 3, 5, 5],
    [5, 4, 3, 2, 1, 0],
    [0, 1, 4, 5],
    [0, 0, 1, 3],
    [3, 0, 3, 1, 0],
    [2, 2],
    [1],
]


@every_model
def test_rows_keep_their_sources_after_every_selection(case: Case) -> None:
    model, source = small(case), some_source(LENGTHS[:3])
    rows = [(number, [EOS]) for number in range(3)]  # number of the source, tokens so far
    log_probs_BV, state = model.step(model.start(source), torch.tensor([EOS] * 3))
    for turn, chosen in enumerate(WALK):
        token_K = (some_tokens(1, len(chosen), seed=turn)[0]) % 4
        state = model.select(state, torch.tensor(chosen))
        log_probs_BV, state = model.step(state, token_K)
        rows = [(rows[row][0], [*rows[row][1], token]) for row, token in zip(chosen, token_K.tolist(), strict=True)]
        for (number, tokens), log_probs_V in zip(rows, log_probs_BV, strict=True):
            alone_BV, _ = model.prefill(model.start(one_row(source, number)), torch.tensor([tokens]))
            torch.testing.assert_close(log_probs_V, alone_BV[0], **CLOSE)


@pytest.mark.parametrize("name", ATTENDING)  # the others pass on a single state
def test_a_source_is_kept_once_for_all_its_hypotheses(name: str) -> None:
    model, source = small_translator(name), some_source(LENGTHS)

    def kept(state: Any) -> Tensor:
        memory = state.memory
        if isinstance(model, Fat):
            return memory.layers[0].value_AHSE  # type: ignore[no-any-return]
        found: Tensor = memory.pairs[0][0] if isinstance(model, EncoderDecoder) else memory.values_ASU
        return found

    with kernels_suspended():  # the engine keeps the memory of all sources as it is
        first = model.start(source)
    widened = model.select(first, torch.arange(4).repeat_interleave(5))
    assert widened.memory.rows == 5
    assert kept(widened).data_ptr() == kept(first).data_ptr()  # not even copied
    fewer = model.select(widened, torch.tensor([3, 3, 0, 19, 18, 15]))
    assert (len(kept(fewer)), fewer.memory.rows) == (2, 3)
    assert torch.equal(kept(fewer), kept(first)[[0, 3]])
    unequal = model.select(fewer, torch.tensor([0, 1, 4]))
    assert (len(kept(unequal)), unequal.memory.rows) == (3, 1)
    assert torch.equal(kept(unequal), kept(first)[[0, 0, 3]])


@every_name
def test_sources_searched_together_give_what_each_gives_alone(name: str) -> None:
    model, source = small_translator(name), some_source(LENGTHS)
    options: dict[str, Any] = {"eos": EOS, "beams": 4, "length_penalty": 1.0, "num_return_sequences": 4}
    limits = [6, 3, 9, 5]
    prompt_B1 = torch.full((4, 1), EOS)
    together = beam_search(model, model.start(source), prompt_B1, max_new_tokens=limits, **options)
    for number, limit in enumerate(limits):
        start = model.start(one_row(source, number))
        (alone,) = beam_search(model, start, prompt_B1[:1], max_new_tokens=limit, **options)
        assert [one.tokens for one in together[number]] == [one.tokens for one in alone]
        assert [one.log_prob for one in together[number]] == pytest.approx([one.log_prob for one in alone], abs=1e-4)


@pytest.mark.parametrize("case", [case for case in one_output(TRANSLATED_CASES) if case[0] in ATTENDING], ids=case_id)
def test_attention_sums_to_one_and_ignores_padding(case: Case) -> None:
    model, source, tokens_BT = small(case), some_source(LENGTHS, padding=2), some_tokens(4, 5)
    weights_BTS = model.attention(tokens_BT, source)
    assert weights_BTS.shape == (4, 5, source.tokens_BS.shape[1])
    torch.testing.assert_close(weights_BTS.sum(2), torch.ones(4, 5), **CLOSE)
    assert not weights_BTS.masked_select(~source.mask_BS[:, None]).any()
    for number in range(4):
        row = one_row(source, number)
        alone_TS = model.attention(tokens_BT[number : number + 1], row)[0]
        torch.testing.assert_close(weights_BTS[number, :, : alone_TS.shape[1]], alone_TS, **CLOSE)


# 6. Saving and loading


@every_output
def test_6_a_loaded_model_gives_identical_numbers(case: Case, tmp_path: Path) -> None:
    name, output, options = case
    tokenizer, source_tokenizer = (
        train_tokenizer("char", text_of("abcdefgh\n")),
        train_tokenizer("char", text_of("xyz\n")),
    )
    counts = [np.arange(kind.vocab_size, 0, -1) ** 2 for kind in (tokenizer, source_tokenizer)]
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.eos, counts[0])
    folder = RunFolder(tmp_path / "run")
    folder.write_config(small_config(name, output, **options))
    tokenizer.save(folder.path)
    if options.get("separate"):
        source_tokenizer.save(folder.path / "source")
        read = Vocabulary(source_tokenizer.vocab_size, source_tokenizer.eos, counts[1])
        vocabulary = replace(vocabulary, source=read)
    model = small_translator(name, output, vocabulary, **options)
    save_model(folder, model)
    loaded: Any = load_model(folder, folder.read_tokenizer())
    tokens_BT, source = some_tokens(4, 7, size=tokenizer.vocab_size), some_source(LENGTHS)
    assert torch.equal(loaded.log_probs(tokens_BT, source), model.log_probs(tokens_BT, source))
    assert torch.equal(
        rows_by_steps(ConditionedModel(loaded, source), tokens_BT),
        rows_by_steps(ConditionedModel(model, source), tokens_BT),
    )
    assert loaded.parameter_count == model.parameter_count


# 7. The same seed gives the same model


@every_output
def test_7_the_same_seed_makes_the_same_model(case: Case) -> None:
    name, output, options = case
    vocabulary = replace(some_vocabulary(), source=some_vocabulary(7) if options.get("separate") else None)

    def weights(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        model = build_model(small_config(name, output, **options), vocabulary)
        return [p.detach() for p in model.parameters() if p.dim() > 1]

    assert all(map(torch.equal, weights(1), weights(1)))
    assert not any(map(torch.equal, weights(1), weights(2)))


def fitted(paths: tuple[Path, Path], out: Path, name: str, output: str, steps: int, **options: Any) -> RunFolder:
    """A small translator after a short training."""
    wider = {key: 16 for key in ("embedding", "hidden") if key in small_options(name)}
    values = {
        "data": {"train": [str(path) for path in paths], "held_out": 0.2},
        "tokenizer": {"kind": "char", "joint": not options.get("separate")},
        "model": {"name": name, **small_options(name, **{**wider, **options})},
        "output": {"name": output},
        "training": {"steps": steps, "max_tokens": 128, "optimizer": "adamw", "lr": 0.02, "validations": 1},
    }
    return fit(RunConfig.model_validate(values), out).folder


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pairs(tmp_path_factory.mktemp("pairs"), letter_pairs(400, longest=3))


@every_name
def test_7_training_twice_gives_identical_weights(name: str, paths: tuple[Path, Path], tmp_path: Path) -> None:
    runs = [fitted(paths, tmp_path / out, name, "softmax", 3, dropout=0.3) for out in ("one", "other")]
    one, other = (run.read_weights() for run in runs)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


# 8. It learns

LEARNERS: list[Case] = [
    *((name, "softmax", {}) for name in TRANSLATORS),
    *(
        ("seq2seq-attention", "softmax", {"score": score, "input_feeding": False})
        for score in ("dot", "additive", "location")
    ),
    ("seq2seq-attention", "hierarchical", {"cell": "gru"}),
    ("seq2seq-transformer", "softmax", {"separate": True, "norm": "post", "positions": "rotary"}),
    ("seq2seq-transformer", "adaptive", {"positions": "learned"}),
    ("seq2seq-transformer", "nce", {"positions": "rotary"}),
    ("t5", "sampled", {"gated": True}),
]


def unigram_entropy(lines: list[str]) -> float:
    """Entropy of the frequencies of letters and line ends, in nats."""
    counts = Counter("".join(line + "\n" for line in lines))
    return -sum(n / counts.total() * math.log(n / counts.total()) for n in counts.values())


@pytest.mark.parametrize("case", LEARNERS, ids=case_id)
def test_8_it_learns(case: Case, paths: tuple[Path, Path], tmp_path: Path) -> None:
    import chainrule as cr

    name, output, options = case
    run = cr.load(fitted(paths, tmp_path / "run", name, output, 240, dropout=0.0, **options).path)
    held_out = write_pairs(tmp_path, letter_pairs(60, seed=9, longest=3))
    scores = list(run.score_pairs(held_out))  # type: ignore[attr-defined]
    loss = -sum(one.log_prob for one in scores) / sum(one.tokens for one in scores)
    # Without the source, 0.8 of the entropy is the best possible.
    assert loss < 0.6 * unigram_entropy(held_out[1].read_text().splitlines())
