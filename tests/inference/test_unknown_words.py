"""What unknown words are charged: against the speller, against the bits of an evaluation, and in choices."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as HuggingFace
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

import chainrule as cr
from chainrule.cli.main import main
from chainrule.errors import ConfigError
from chainrule.inference.few_shot import best_of
from chainrule.inference.unknown_words import PENALTY, UnknownWords
from chainrule.text.coding.residue_meter import ResidueMeter
from chainrule.text.readers import text_of
from chainrule.text.tokenizers import train_tokenizer

TEXT = "".join(f"the city of {name} is old\n" for name in ("london", "paris", "rome", "berlin")) * 20


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> cr.Run:
    folder = tmp_path_factory.mktemp("unknown")
    (folder / "text.txt").write_text(TEXT + "rarely a word once\n" + "".join(f"w{n} x{n}\n" for n in range(40)))
    settings = {"tokenizer": {"min_count": 2}}
    return cr.train(folder / "text.txt", model="ngram", tokenizer="word", out=folder / "run", settings=settings)


def test_charges_are_those_of_the_speller(run: cr.Run) -> None:
    tokenizer = run.tokenizer
    text = "the zzqx of <unk>\nlondon zz zz"
    ids = [*tokenizer.encode_block(text), tokenizer.eos]
    charges_N = UnknownWords("spell").charges(tokenizer, text, ids)
    expected = {1: b"zzqx", 6: b"zz", 7: b"zz"}  # the literal <unk> at 3 is free
    for place, charge in enumerate(charges_N):
        bits = tokenizer.speller.bits(expected[place]) if place in expected else 0.0
        assert charge == pytest.approx(-bits * math.log(2))
    assert np.array_equal(UnknownWords("unk").charges(tokenizer, text, ids), np.zeros(len(ids)))
    assert UnknownWords("penalty", 3.0).charges(tokenizer, text, ids).tolist() == [0, -3, 0, 0, 0, 0, -3, -3, 0]
    assert UnknownWords("penalty").charges(tokenizer, "zz", [tokenizer.unk]).tolist() == [-PENALTY]


def _word_level(path: Path) -> Path:
    """A Hugging Face tokeniser that loses the spelling of unknown words."""
    words = ["[UNK]", "</s>", *sorted(set(TEXT.split()))]
    model = WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = HuggingFace(model)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(["[UNK]", "</s>"])
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("kind", ["char", "word", "file"])
def test_the_spelling_costs_what_an_evaluation_charges(kind: str, tmp_path: Path) -> None:
    """One line: the residue is the spelling, and at most a few bits for flags and frames."""
    chosen = _word_level(tmp_path / "tokenizer.json") if kind == "file" else kind
    tokenizer = train_tokenizer(chosen, text_of(TEXT))
    line = "the city of ЖΩ is old"
    ids = tokenizer.encode_block(line)
    meter = ResidueMeter(tokenizer)
    meter.add(line, ids)
    meter.finish()
    nats = -UnknownWords("spell").charges(tokenizer, line, ids).sum()
    assert 0 < nats / math.log(2) <= meter.bits < nats / math.log(2) + 25


def test_every_way_to_score_charges_the_same(run: cr.Run, tmp_path: Path) -> None:
    lines = ["the city of zzqx", "", "qqqq", "the city of london is old"]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    for oov in ("unk", "spell", "penalty"):
        scored = list(run.score(lines, oov=oov))
        blocks = [log_prob for block, _ in run.score_text(tmp_path / "lines.txt", oov=oov) for log_prob in block]
        assert blocks == pytest.approx([one.log_prob for one in scored], abs=1e-5)
    plain, spelled = (run.score(lines[0], oov=oov) for oov in ("unk", "spell"))
    cost = run.tokenizer.speller.bits(b"zzqx") * math.log(2)
    assert spelled.log_prob == pytest.approx(plain.log_prob - cost, abs=1e-6)
    assert spelled.log_probs[3] == pytest.approx(plain.log_probs[3] - cost, abs=1e-6)


def test_nonsense_is_not_preferred(run: cr.Run) -> None:
    """Before spellings were charged, the most probable choice was a word that does not exist."""
    choices = [" london is", " zzqx is"]
    text = "w1"  # after it, every known word of the choices is less probable than <unk>
    before, now = run.choose(text, choices, oov="unk"), run.choose(text, choices)
    assert before[best_of(before)].text == " zzqx is"
    assert now[best_of(now)].text == " london is"
    assert now[0] == before[0]
    fixed = run.choose(text, choices, oov="penalty", oov_penalty=100.0)
    assert fixed[1].log_prob == pytest.approx(before[1].log_prob - 100)


def test_the_verb(run: cr.Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*options: str, stdin: str = "the zzqx\n") -> str:
        monkeypatch.setattr(sys, "argv", ["chainrule", "score", str(run.folder.path), *options])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit):
            main()
        return "".join(capsys.readouterr())

    plain, spelled = float(call()), float(call("--oov", "spell"))
    assert spelled == pytest.approx(plain - run.tokenizer.speller.bits(b"zzqx") * math.log(2), abs=1e-3)
    assert float(call("--oov", "penalty", "--oov-penalty", "2")) == pytest.approx(plain - 2, abs=1e-3)
    offered = ("--choices", " zzqx is", "--choices", " london is")
    assert call(*offered, stdin="w1\n") == " london is\n"
    assert call(*offered, "--oov", "unk", stdin="w1\n") == " zzqx is\n"
    assert "oov_penalty is 2.0, but oov is unk" in call("--oov-penalty", "2")


def test_errors() -> None:
    with pytest.raises(ConfigError, match="unknown oov 'spel': did you mean 'spell'"):
        UnknownWords("spel")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="oov_penalty is -1; expected a number of nats of at least 0"):
        UnknownWords("penalty", -1)
