"""`chainrule translate` and `distill`, and `train`, `eval` and `score` with pairs."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import chainrule as cr
from builders import letter_pairs, write_pairs
from chainrule.cli.main import main
from chainrule.runs.translator import TranslatorRun

EVALUATION = {"tokens", "oov", "bytes", "cross_entropy", "perplexity", "perplexity_without_oov", "bits_per_byte"}
EVALUATION |= {"signature", "bleu", "chrf", "rouge1", "rouge2", "rougeL"}
SHAPE = ["embedding=8", "heads=2", "encoder_layers=1", "decoder_layers=1", "feedforward=16", "context=24", "dropout=0"]
SETTINGS = [*(f"model.{option}" for option in SHAPE), "training.optimizer=adamw", "training.lr=0.02"]


class Result(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Result]


@pytest.fixture
def chainrule(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `chainrule ARGUMENTS…` in this process."""

    def call(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["chainrule", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, two translators and a language model."""
    from chainrule.config import parse_settings

    folder = tmp_path_factory.mktemp("translate")
    pairs = write_pairs(folder, letter_pairs(200), "train")
    write_pairs(folder, letter_pairs(12, seed=5), "test")
    for name, steps in (("a", 2), ("b", 60)):
        cr.train(
            *pairs,
            model="seq2seq-transformer",
            tokenizer="char",
            steps=steps,
            max_tokens=64,
            out=folder / name,
            settings=parse_settings([*SETTINGS, "training.validations=1"]),
        )
    cr.train(folder / "train.src", model="ngram", order=2, tokenizer="char", out=folder / "lm")
    return folder


@pytest.fixture(scope="module")
def loaded(place: Path) -> TranslatorRun:
    run = cr.load(place / "b")
    assert isinstance(run, TranslatorRun)
    return run


def refused(done: Result) -> str:
    """The one-line message of a mistake."""
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.count("\n") == 1
    return done.err.removeprefix("chainrule: ").rstrip("\n")


LINES = ["abc", "", "d", "ab" * 5, "cab"]
STDIN = "\n".join(LINES).encode()


# translate


def test_standard_input_is_translated_to_standard_output(place: Path, loaded: TranslatorRun, chainrule: Call) -> None:
    done = chainrule("translate", place / "b", stdin=STDIN)
    assert done.code == 0, done.err
    assert done.out.split("\n") == [*(loaded.translate(line) for line in LINES), ""]
    assert done.err.startswith("5 lines, ")
    text = place / "lines.txt"
    text.write_bytes(STDIN)
    assert chainrule("translate", place / "b", text).out == done.out
    greedy = chainrule("translate", place / "b", text, "--num-beams", 1, "--prefix", "A", "--max-new-tokens", 3)
    options: dict[str, Any] = {"num_beams": 1, "prefix": "A", "max_new_tokens": 3}
    assert greedy.out.splitlines() == [loaded.translate(line, **options) for line in LINES]
    together = chainrule("translate", place / "b", text, "--ensemble", place / "b", "--ensemble", place / "b")
    assert together.out == done.out


def test_json_is_one_object_per_line(place: Path, loaded: TranslatorRun, chainrule: Call) -> None:
    done = chainrule("translate", place / "b", "--json", stdin=STDIN)
    found = [json.loads(line) for line in done.out.splitlines()]
    expected = [best for best, *_ in loaded.translate_lines(LINES)]
    assert [one["id"] for one in found] == [0, 1, 2, 3, 4]
    assert [one["text"] for one in found] == [one.text for one in expected]
    assert [one["score"] for one in found] == pytest.approx([one.score for one in expected], abs=1e-5)
    assert [one["log_prob"] for one in found] == pytest.approx([one.log_prob for one in expected], abs=1e-5)
    done = chainrule("translate", place / "b", "--json", "--n-best", 3, stdin=b"abc\n")
    assert "1 line, " in done.err
    best = json.loads(done.out)
    assert len(best["n_best"]) == 3
    assert best["n_best"][0] == {name: best[name] for name in ("text", "score", "log_prob")}


def test_a_draft_does_not_change_the_output_and_is_reported(place: Path, chainrule: Call) -> None:
    greedy = chainrule("translate", place / "b", "--num-beams", 1, stdin=STDIN)
    cr.train(
        place / "train.tgt", model="ngram", order=3, tokenizer=str(place / "b" / "tokenizer.json"), out=place / "tgt"
    )
    for drafter in (place / "a", place / "b", place / "tgt", "lookup"):
        done = chainrule("translate", place / "b", "--draft", drafter, "--draft-tokens", 3, stdin=STDIN)
        assert done.code == 0, done.err
        assert done.out == greedy.out
        assert " passes per line for " in done.err
        assert "x the speed without drafts, measured on the first 5 lines, one at a time" in done.err
    assert " 100% of " in chainrule("translate", place / "b", "--draft", place / "b", stdin=b"abc\n").err


def test_unsupported_drafts_and_modes_are_refused(place: Path, chainrule: Call) -> None:
    def said(*options: object) -> str:
        return refused(chainrule("translate", place / "b", *options, stdin=STDIN)).replace(str(place), "runs")

    assert said("--draft", place / "lm") == (
        "runs/lm (ngram) has other tokens than runs/b (seq2seq-transformer), so it cannot draft for it; train it with "
        "the tokeniser of the translator (--tokenizer FOLDER)"
    )
    assert said("--draft", "lookup", "--num-beams", 3) == (
        "--draft is for greedy search by one run; leave ensemble, --num-beams, n-best and --mode out"
    )
    assert said("--draft", "lookup", "--draft-tokens", 0) == (
        "draft_tokens is 0; expected at least 1: leave the draft out to have none"
    )
    assert said("--mode", "nar") == (
        "--mode is nar, but runs/b (seq2seq-transformer) has the mode ar only; train a hybrid for the others"
    )
    assert said("--refine", 2) == ("--lengths and --refine apply to --mode nar only; add --mode nar, or leave them out")
    assert said("--set", "model.heads=4") == (
        "model.heads is fixed once a model is trained; none of its options can be set now"
    )
    assert said("--set", "training.lr=4") == (
        "--set training is for training; of a finished run some options of the model can be set, such as "
        "--set model.gamma=0.2"
    )


def test_each_of_the_n_best_has_a_line(place: Path, loaded: TranslatorRun, chainrule: Call) -> None:
    done = chainrule("translate", place / "b", "--n-best", 2, "--num-beams", 3, stdin=STDIN)
    rows = [line.split(" ||| ") for line in done.out.splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2", "3", "3", "4", "4"]  # an empty line has one
    found = [one for best in loaded.translate_lines(LINES, num_return_sequences=2, num_beams=3) for one in best]
    assert [row[1] for row in rows] == [one.text for one in found]
    assert [float(row[2]) for row in rows] == pytest.approx([one.score for one in found], abs=1e-4)
    assert refused(chainrule("translate", place / "b", "--n-best", 6, stdin=b"abc\n")) == (
        "num_return_sequences is 6; expected 1 to 5, the width of the beam: widen the beam for more"
    )


def test_attention_is_written_to_a_file(place: Path, loaded: TranslatorRun, tmp_path: Path, chainrule: Call) -> None:
    out = tmp_path / "new" / "attention.json"
    done = chainrule("translate", place / "b", "--attention", out, stdin=STDIN)
    assert done.out == chainrule("translate", place / "b", stdin=STDIN).out
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["source"] for one in found] == [[*line, "<eos>"] if line else [] for line in LINES]
    for one, text in zip(found, done.out.splitlines(), strict=True):
        assert one["target"] == ([*text, "<eos>"] if one["source"] else [])
        assert len(one["weights"]) == len(one["target"])
        assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in one["weights"])


@pytest.mark.filterwarnings("default")  # a command prints warnings
def test_a_line_that_is_too_long_gives_a_warning(place: Path, loaded: TranslatorRun, chainrule: Call) -> None:
    done = chainrule("translate", place / "b", stdin=b"a\n" + b"b" * 100_000 + b"\nc\n")
    assert done.code == 0
    warning = "warning: line 2 has 100000 tokens, but the model reads 23: the rest is missing from the translation"
    assert done.err.splitlines()[0] == warning
    assert [done.out.splitlines()[number] for number in (0, 2)] == [loaded.translate("a"), loaded.translate("c")]
    assert len(done.out.splitlines()) == 3


def test_mistakes_are_one_line(place: Path, tmp_path: Path, chainrule: Call) -> None:
    assert refused(chainrule("translate", place / "lm", stdin=STDIN)).startswith(
        f"{place / 'lm'} (ngram) has no translate; translate works with fat, hybrid, "
    )
    assert refused(chainrule("translate", place / "b", tmp_path / "none.txt")) == (
        f"there is no file '{tmp_path / 'none.txt'}': check the name and the folder."
    )
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert refused(chainrule("translate", place / "b", empty)) == (
        f"{empty} is empty: expected text; give a file with at least one line."
    )
    assert refused(chainrule("translate", place / "b", stdin=b"a\xff\n")) == (
        "standard input is not UTF-8 (byte 0xff); convert it first: iconv -f latin1 -t utf-8"
    )
    assert refused(chainrule("translate", place / "b", "--num-beams", 0, stdin=STDIN)) == (
        "num_beams is 0; expected at least 1"
    )
    assert refused(chainrule("generate", place / "b", "--prompt", "a")).startswith(
        f"{place / 'b'} (seq2seq-transformer) has no generate; generate works with at, average, "
    )


# train


def test_a_translator_is_trained_and_evaluated(place: Path, tmp_path: Path, chainrule: Call) -> None:
    command: list[object] = ["train", place / "train.src", place / "train.tgt", "--model", "seq2seq-transformer"]
    command += ["--valid", place / "test.src", "--valid", place / "test.tgt", "--tokenizer", "char", "--steps", 2]
    command += ["--max-tokens", 64, "--out", tmp_path / "run"]
    for setting in SETTINGS:
        command += ["--set", setting]
    done = chainrule(*command, "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert {"run", "steps", "seconds", "parameters", "tokens_per_second", "valid"} <= set(result)
    assert set(result["valid"]) >= EVALUATION
    assert result["valid"]["sentences"] == 12
    again = chainrule("eval", tmp_path / "run", place / "test.src", place / "test.tgt", "--num-beams", 1, "--json")
    assert json.loads(again.out) == result["valid"]
    started = chainrule(*command[:3], "--init", place / "b", "--steps", 1, "--out", tmp_path / "tuned", "--json")
    assert started.code == 0, started.err
    assert json.loads(started.out)["parameters"] == cr.load(place / "b").parameters


# eval and score


def test_pairs_are_evaluated(place: Path, tmp_path: Path, chainrule: Call) -> None:
    pairs, out = [place / "test.src", place / "test.tgt"], tmp_path / "outputs.txt"
    done = chainrule("eval", place / "b", *pairs, "--outputs", out, "--json")
    assert done.code == 0, done.err
    measured = json.loads(done.out)
    assert set(measured) >= EVALUATION
    assert out.read_text() == chainrule("translate", place / "b", pairs[0]).out
    right = chainrule("eval", place / "b", *pairs, "--reference", out, "--json")
    assert json.loads(right.out)["exact_match"] == 1
    assert "nrefs:2" in json.loads(right.out)["bleu_signature"]
    assert (
        "case:lc" in json.loads(chainrule("eval", place / "b", *pairs, "--lowercase", "--json").out)["bleu_signature"]
    )
    shown = chainrule("eval", place / "b", *pairs, "--verbose")
    fields = dict(line.split("  ", 1) for line in shown.out.splitlines())
    assert float(fields[next(name for name in fields if name.strip() == "chrf")]) == pytest.approx(
        measured["chrf"], abs=1e-3
    )
    assert measured["protocol"] in shown.err


def test_two_runs_are_compared(place: Path, chainrule: Call) -> None:
    pairs = [place / "test.src", place / "test.tgt"]
    done = chainrule("eval", place / "a", place / "b", *pairs, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [one["run"] for one in found["runs"]] == [str(place / "a"), str(place / "b")]
    alone = json.loads(chainrule("eval", place / "b", *pairs, "--json").out)
    assert {name: found["runs"][1][name] for name in alone} == alone
    assert [one["metric"] for one in found["paired"]] == ["bleu", "chrf"]
    for one in found["paired"]:
        name = one["metric"]
        assert one["a"] == pytest.approx(found["runs"][0][name])
        assert one["difference"] == pytest.approx(found["runs"][1][name] - found["runs"][0][name])
        assert 0 <= one["p_value"] <= 1
    shown = chainrule("eval", place / "a", place / "b", *pairs).out
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("metric")] == ["bleu", "chrf"]
    assert shown.count("\np value ") == 2


def test_targets_are_scored(place: Path, loaded: TranslatorRun, chainrule: Call) -> None:
    pairs = [place / "test.src", place / "test.tgt"]
    expected = list(loaded.score_pairs(pairs))
    done = chainrule("score", place / "b", *pairs)
    assert [float(line) for line in done.out.splitlines()] == pytest.approx([o.log_prob for o in expected], abs=1e-3)
    done = chainrule("score", place / "b", *pairs, "--tokens")
    rows = [[part.rsplit(" ", 1) for part in line.split("\t")] for line in done.out.splitlines()]
    assert [[piece for piece, _ in row] for row in rows] == [one.pieces for one in expected]
    for row, one in zip(rows, expected, strict=True):
        assert [float(nats) for _, nats in row] == pytest.approx(one.log_probs, abs=1e-3)
    done = chainrule("score", place / "b", *pairs, "--json", "--tokens")
    first = json.loads(done.out.splitlines()[0])
    assert (first["tokens"], first["pieces"]) == (expected[0].tokens, expected[0].pieces)
    table = place / "test.tsv"
    sources, targets = (path.read_text().splitlines() for path in pairs)
    table.write_text("".join(f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True)))
    assert chainrule("score", place / "b", table).out == chainrule("score", place / "b", *pairs).out


def test_missing_pairs_and_other_models_are_errors(place: Path, tmp_path: Path, chainrule: Call) -> None:
    pairs = [place / "test.src", place / "test.tgt"]
    one_file = (
        "got 1 file for pairs of lines: expected two, source then target, or one .tsv, .csv, .jsonl or hf:NAME:SPLIT "
        "with both; name them."
    )
    assert refused(chainrule("eval", place / "b", pairs[0])) == one_file
    assert refused(chainrule("score", place / "b", pairs[0])) == one_file
    assert f"{place / 'lm'} (ngram) has no " in refused(chainrule("score", place / "lm", *pairs))
    assert f"{place / 'lm'} (ngram) has no translate; " in refused(chainrule("eval", place / "b", place / "lm", *pairs))
    for option, *values in (["--lowercase"], ["--num-beams", 2], ["--outputs", tmp_path / "out"]):
        assert refused(chainrule("eval", place / "lm", pairs[0], option, *values)) == (
            f"{option} does not apply to {place / 'lm'} (ngram); leave it out"
        )
    languages = [tmp_path / "test.en", tmp_path / "test.de"]
    for path in languages:
        path.write_text("a\n")
    assert "look like pairs, but ngram reads one text" in refused(chainrule("eval", place / "lm", *languages))
    shorter = tmp_path / "shorter.tgt"
    shorter.write_text("A\n")
    for verb in ("eval", "score"):
        assert f"line 2 of {pairs[0]} has no partner" in refused(chainrule(verb, place / "b", pairs[0], shorter))


# distill


def test_a_teacher_writes_pairs_for_a_student(place: Path, tmp_path: Path, chainrule: Call) -> None:
    out = tmp_path / "pairs.tsv"
    command = ["distill", place / "b", "--data", place / "test.src", "--out", out, "--num-beams", 2]
    done = chainrule(*command, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"pairs": 12, "out": str(out)}
    targets = chainrule("translate", place / "b", place / "test.src", "--num-beams", 2).out.splitlines()
    sources = (place / "test.src").read_text().splitlines()
    assert out.read_text().splitlines() == [f"{one}\t{other}" for one, other in zip(sources, targets, strict=True)]
    assert refused(chainrule(*command)) == f"{out} already exists; delete it, or choose another --out"
    out.unlink()
    assert chainrule(*command).err == f"12 pairs written to {out}\n"
    assert "(ngram) has no distill; " in refused(
        chainrule("distill", place / "lm", "--data", place / "test.src", "--out", tmp_path / "other.tsv")
    )


def test_a_trace_is_written_beside_the_translations(place: Path, loaded: TranslatorRun, chainrule: Call) -> None:
    file = place / "trace.jsonl"
    done = chainrule("translate", place / "b", "--trace", file, "--num-beams", 3, "--json", stdin=STDIN)
    assert done.code == 0, done.err
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    expected = [best for best, *_ in loaded.translate_lines(LINES, num_beams=3, trace=True)]
    assert [len(one["nodes"]) for one in records] == [len(one.trace.nodes) if one.trace else 0 for one in expected]
    assert [json.loads(line)["passes"] for line in done.out.splitlines()] == [one.passes for one in expected]
    assert records[1] == {"prefix": [], "nodes": []}
    for record, best in zip(records, expected, strict=True):
        for found, node in zip(record["nodes"], best.trace.nodes if best.trace else (), strict=True):
            assert (found["piece"], found["parent"], found["fate"]) == (node.piece, node.parent, node.fate)
    message = refused(chainrule("translate", place / "b", "--trace", file, "--force", "A", stdin=STDIN))
    assert message.startswith("--trace shows a plain beam search; leave --mode")
