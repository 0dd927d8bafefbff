"""The verbs of the command line: results, JSON keys, and messages of mistakes."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from builders import header_bytes, pairs_text
from chainrule.cli.main import app, main

EVALUATION = {
    "tokens",
    "oov",
    "bytes",
    "cross_entropy",
    "perplexity",
    "perplexity_without_oov",
    "bits_per_byte",
    "signature",
    "protocol",
}
SMALL = ["model.embedding=12", "model.hidden=12", "model.layers=1", "training.batch_size=8", "training.length=16"]
VERBS = (
    "demo",
    "train",
    "eval",
    "score",
    "generate",
    "translate",
    "distill",
    "count",
    "merge",
    "compare",
    "mix",
    "compress",
    "decompress",
    "export",
    "import",
    "models",
    "info",
    "tokenize",
)
WORDS = "the cat sat on the mat\na dog ran to the cat\nthe dog sat\n"


@dataclass
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The object that was printed on standard output."""
        assert self.code == 0, self.err
        return json.loads(self.out)


Call = Callable[..., Result]


@pytest.fixture
def chainrule(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`chainrule ARGUMENTS…`, in this process."""

    def call(*arguments: object, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "argv", ["chainrule", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return call


def made(path: Path, text: Path, tokenizer: str, *settings: str, steps: int = 40, **options: Any) -> Path:
    """Train a run through Python -> its folder."""
    from chainrule import train
    from chainrule.config import parse_settings

    values = parse_settings([*(settings or SMALL), "training.lr=0.02"])
    train(text, tokenizer=tokenizer, steps=steps, out=path, device="cpu", settings=values, **options)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "pairs.txt").write_text(pairs_text(200))
    (folder / "test.txt").write_text(pairs_text(30, seed=5))
    rng = random.Random(0)
    lines = [" ".join(rng.choice(WORDS.split()) for _ in range(6)) for _ in range(150)]
    (folder / "words.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """A run with a character tokeniser."""
    return made(place / "run", place / "pairs.txt", "char")


@pytest.fixture(scope="module")
def word_run(place: Path) -> Path:
    return made(place / "word-run", place / "words.txt", "word")


# Quick answers


@pytest.mark.parametrize("what", ["import chainrule", "from chainrule.cli.main import app; app(['--help'])"])
def test_nothing_imports_torch_before_it_is_needed(what: str) -> None:
    code = f"import sys\ntry:\n    {what}\nexcept SystemExit:\n    pass\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["False"], done.stderr


def test_help_names_every_verb(chainrule: Call) -> None:
    shown = chainrule("--help")
    assert shown.code == 0
    for verb in VERBS:
        assert f"\n  {verb} " in shown.out
        assert chainrule(verb, "--help").code == 0


def test_help_is_complete(chainrule: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in chainrule("--help").out.partition("Commands:")[2]  # no summary is cut off
    verbs = get_command(app).commands  # type: ignore[attr-defined]
    parameters = [(verb, one) for verb, command in verbs.items() for one in command.params]
    assert [(verb, one.name) for verb, one in parameters if not (one.help or "").endswith(".")] == []


def test_models_lists_name_family_and_task(chainrule: Call) -> None:
    from chainrule.registry import MODELS

    listed = chainrule("models", "--json").json()
    assert [one["name"] for one in listed] == MODELS.names()
    assert {"name", "family", "task"} <= set(listed[0])
    assert {one["task"] for one in listed} <= {"lm", "seq2seq", "embedding", "classifier"}
    shown = chainrule("models").out.splitlines()
    assert [line.split()[0] for line in shown] == MODELS.names()


# Training and evaluation


def test_train_reports_on_standard_output_alone(chainrule: Call, place: Path, tmp_path: Path) -> None:
    options = [option for setting in SMALL for option in ("--set", setting)]
    arguments = ["train", place / "pairs.txt", "--model", "gru", "--tokenizer", "char", "--steps", 5, *options]
    first = chainrule(*arguments, "--out", tmp_path / "one", "--json")
    printed = first.json()
    assert set(printed) == {
        *("run", "steps", "seconds", "parameters", "tokens_per_second", "peak_memory", "valid", "stopped", "validation")
    }
    assert printed["stopped"] == "the budget of 5 steps is spent"
    assert set(printed["valid"]) == EVALUATION
    assert (printed["run"], printed["steps"]) == (str(tmp_path / "one"), 5)
    assert [line.partition(":")[0] for line in first.err.splitlines()] == ["tokeniser", "validation"]
    again = chainrule(*arguments, "--out", tmp_path / "one")
    assert again.err.splitlines()[0] == (
        f"{tmp_path / 'one'} is already finished; choose another --out, or give a larger budget to train longer"
    )
    fields = dict(line.split("  ", 1) for line in again.out.splitlines())
    assert fields["steps"].strip() == "5"
    assert float(fields["valid bits per byte"]) == pytest.approx(printed["valid"]["bits_per_byte"], abs=1e-4)


def test_text_can_come_from_standard_input(chainrule: Call, tmp_path: Path) -> None:
    options = [option for setting in SMALL for option in ("--set", setting)]
    printed = chainrule("train", "-", "--steps", 3, *options, "--out", tmp_path / "run", "--json", stdin=pairs_text(40))
    assert printed.json()["steps"] == 3


def test_eval_prints_what_python_returns(chainrule: Call, run: Path, place: Path) -> None:
    from chainrule import load

    printed = chainrule("eval", run, place / "test.txt", "--json").json()
    assert set(printed) == EVALUATION
    assert printed == load(run).evaluate(place / "test.txt").to_dict()
    assert chainrule("eval", run, place / "test.txt").err == ""
    shown = chainrule("eval", run, place / "test.txt", "--verbose")
    assert printed["protocol"] in shown.err
    assert printed["protocol"] not in shown.out
    assert f"{printed['bits_per_byte']:.4f}" in shown.out


def test_score_prints_a_number_per_line_the_sum_over_its_tokens(chainrule: Call, run: Path, place: Path) -> None:
    lines = (place / "test.txt").read_text().splitlines()
    plain = chainrule("score", run, place / "test.txt")
    records = [json.loads(line) for line in chainrule("score", run, place / "test.txt", "--json").out.splitlines()]
    assert [set(record) for record in records] == [{"log_prob", "tokens"}] * len(lines)
    assert [record["tokens"] for record in records] == [len(line) + 1 for line in lines]
    assert [float(line) for line in plain.out.splitlines()] == pytest.approx(
        [record["log_prob"] for record in records], abs=1e-4
    )
    spelled = chainrule("score", run, place / "test.txt", "--tokens", "--json").out.splitlines()
    for line, record, text in zip(map(json.loads, spelled), records, lines, strict=True):
        assert sum(line["log_probs"]) == pytest.approx(record["log_prob"], abs=1e-6)
        assert "".join(line["pieces"][:-1]) == text
    shown = chainrule("score", run, place / "test.txt", "--tokens").out.splitlines()
    total = sum(float(part.rpartition(" ")[2]) for part in shown[0].split("\t"))
    assert total == pytest.approx(records[0]["log_prob"], abs=1e-2)


def test_score_reads_standard_input_and_scores_lines_separately(chainrule: Call, run: Path) -> None:
    together = chainrule("score", run, stdin="abab\ncdcd\n\nabab\n").out.splitlines()
    assert len(together) == 4
    assert together[0] == together[3]
    assert chainrule("score", run, "-", stdin="cdcd\n").out.splitlines() == [together[1]]
    assert float(together[0]) > float(chainrule("score", run, stdin="aaaa\n").out)


# Generating


def test_generate_prints_the_same_text_with_and_without_json(chainrule: Call, run: Path) -> None:
    greedy = ["generate", run, "--prompt", "ab", "--max-new-tokens", 12]
    printed = chainrule(*greedy, "--json").json()
    assert set(printed) == {"texts", "tokens_per_second"}
    (text,) = printed["texts"]
    assert text.startswith("ab")
    assert len(text) == 14
    assert chainrule(*greedy).out == text + "\n"  # printed while it is generated
    assert chainrule("generate", run, "--prompt", "-", "--max-new-tokens", 12, stdin="ab").out == text + "\n"


def test_sampling_repeats_with_its_seed(chainrule: Call, run: Path) -> None:
    def texts(seed: int, *options: object) -> list[str]:
        printed = chainrule(
            "generate", run, "--temperature", 1.5, "--seed", seed, "--max-new-tokens", 20, *options, "--json"
        )
        found: list[str] = printed.json()["texts"]
        return found

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)
    three = texts(3, "--num-return-sequences", 3, "--top-k", 8, "--top-p", 0.95)
    assert len(set(three)) == 3
    streamed = chainrule("generate", run, "--temperature", 1.5, "--seed", 1, "--max-new-tokens", 20)
    assert streamed.out == texts(1)[0] + "\n"


def test_a_beam_gives_its_n_best_in_order(chainrule: Call, run: Path) -> None:
    options = ["--prompt", "cd", "--num-beams", 4, "--num-return-sequences", 3, "--max-new-tokens", 5]
    printed = chainrule("generate", run, *options, "--length-penalty", 0, "--json").json()
    assert set(printed) == {"texts", "log_probs", "tokens_per_second"}
    assert len(set(printed["texts"])) == 3
    assert printed["log_probs"] == sorted(printed["log_probs"], reverse=True)
    shown = chainrule("generate", run, *options, "--length-penalty", 0)
    assert shown.out == "".join(text + "\n" for text in printed["texts"])
    assert shown.err.splitlines()[0] == f"--- 1, log p {printed['log_probs'][0]:.3f}"


def test_words_stop_at_the_end_of_the_line(chainrule: Call, word_run: Path) -> None:
    text = chainrule("generate", word_run, "--prompt", "the", "--max-new-tokens", 60, "--json").json()["texts"][0]
    assert text.startswith("the ")
    assert "\n" not in text.rstrip("\n")


# Compressing


@pytest.mark.parametrize("kind", ["char", "word", "byte"])
def test_compression_is_lossless_and_as_small_as_eval_predicts(
    kind: str, chainrule: Call, run: Path, word_run: Path, place: Path, tmp_path: Path
) -> None:
    text = {
        "char": pairs_text(80, seed=3) + "a line with é and 中\n",
        "word": "  the  cat sat\ton the zebra \n\n\na unicorn ran to\r\nthe dog" + WORDS * 4,
        "byte": pairs_text(60, seed=3) + "é\x00中\n",
    }[kind]
    used = run if kind == "char" else word_run
    if kind == "byte":
        used = made(tmp_path / "run", place / "pairs.txt", "byte")
    original, packed, back = tmp_path / "text", tmp_path / "packed", tmp_path / "back"
    original.write_bytes(text.encode())
    printed = chainrule("compress", used, original, "--out", packed, "--json").json()
    assert chainrule("decompress", used, packed, "--out", back).code == 0
    assert back.read_bytes() == text.encode()
    measured = chainrule("eval", used, original, "--json").json()
    predicted = measured["bits_per_byte"] * len(text.encode()) / 8
    assert printed["compressed_bytes"] == packed.stat().st_size
    coded = packed.stat().st_size - header_bytes(packed)
    assert abs(coded - predicted) <= 0.01 * predicted + 40  # checksums and the last words of codes
    assert (measured["oov"] > 0) == (kind != "byte")


# Comparing


def test_compare_prints_one_leaderboard_and_trains_nothing_twice(chainrule: Call, place: Path, tmp_path: Path) -> None:
    options = ["--models", "average, rnn:hierarchical", "--steps", 4, "--tokenizer", "char", "--out", tmp_path / "runs"]
    options += ["--set", "model.embedding=8", "--set", "training.batch_size=4", "--test", place / "test.txt"]
    rows = chainrule("compare", place / "pairs.txt", *options, "--json").json()
    assert [row["bits_per_byte"] for row in rows] == sorted(row["bits_per_byte"] for row in rows)
    assert {row["model"] for row in rows} == {"average", "rnn:hierarchical"}
    assert len({row["signature"] for row in rows}) == 1
    weights = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("model.safetensors")}
    assert len(weights) == 2
    again = chainrule("compare", place / "pairs.txt", *options, "--markdown")
    assert {path: path.stat().st_mtime_ns for path in weights} == weights
    assert again.err.count("is already finished") == 2
    assert again.out.splitlines()[2].split("|")[1].strip() == rows[0]["model"]


# Inspection


def test_info_shows_model_tokeniser_and_signature(chainrule: Call, run: Path) -> None:
    printed = chainrule("info", run, "--json").json()
    assert (printed["model"], printed["output"], printed["tokenizer"], printed["steps"]) == (
        "lstm",
        "softmax",
        "char",
        40,
    )
    assert {"data", "valid", "tokenizer", "seed", "chainrule", "torch", "python"} <= set(printed["signature"])
    shown = chainrule("info", run).out
    assert "lstm" in shown
    assert "\nsteps " in shown


def test_info_of_counted_models_has_no_steps(chainrule: Call, place: Path, tmp_path: Path) -> None:
    chainrule("train", place / "pairs.txt", "--model", "ngram", "--tokenizer", "char", "--out", tmp_path / "run")
    names = [line.partition("  ")[0] for line in chainrule("info", tmp_path / "run").out.splitlines()]
    assert "steps" not in names
    assert {"valid perplexity", "valid bits per byte"} < set(names)  # not a nested record
    assert chainrule("info", tmp_path / "run", "--json").json()["steps"] == 0


def test_tokenize_shows_pieces_and_numbers(chainrule: Call, run: Path) -> None:
    assert chainrule("tokenize", run, stdin="abc\n\nba\n").out == "a b c\n\nb a\n"
    records = [json.loads(line) for line in chainrule("tokenize", run, "--json", stdin="abc\n").out.splitlines()]
    assert records[0]["pieces"] == ["a", "b", "c"]
    ids = chainrule("tokenize", run, "--ids", stdin="abc\n").out.split()
    assert ids == [str(number) for number in records[0]["ids"]]


@pytest.mark.parametrize("kind", ["char", "jieba", "bpe"])
def test_chinese_from_end_to_end(kind: str, chainrule: Call, tmp_path: Path) -> None:
    poem = "白日依山盡 黃河入海流\n欲窮千里目 更上一層樓\n床前明月光 疑是地上霜\n舉頭望明月 低頭思故鄉\n"
    (tmp_path / "poem.txt").write_text(poem * 12, encoding="utf-8")
    size = {"vocab_size": 300} if kind == "bpe" else {}
    out = made(tmp_path / "run", tmp_path / "poem.txt", kind, steps=60, **size)
    printed = chainrule("eval", out, tmp_path / "poem.txt", "--json").json()
    assert printed["oov"] == 0
    assert printed["bytes"] == len((poem * 12).encode())
    text = chainrule("generate", out, "--prompt", "床前", "--max-new-tokens", 5, "--json").json()["texts"][0]
    assert text.startswith("床前")
    assert len(text) > 2
    packed, back = tmp_path / "packed", tmp_path / "back"
    assert chainrule("compress", out, tmp_path / "poem.txt", "--out", packed).code == 0
    assert chainrule("decompress", out, packed, "--out", back).code == 0
    assert back.read_text(encoding="utf-8") == poem * 12


# Mistakes


def refused(result: Result) -> str:
    """The one-line message of a mistake."""
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith("chainrule: ")
    return line.removeprefix("chainrule: ")


@pytest.mark.parametrize(
    ("verb", "given", "suggestion"),
    [
        ("train", ["--hidden", 100], "--hidden; did you mean --set model.hidden=100?"),
        ("train", ["--batch-size=8"], "--batch-size; did you mean --set training.batch_size=8?"),
        ("train", ["--model", "transformer", "--heads", 2], "--heads; did you mean --set model.heads=2?"),
        ("compare", ["--models", "gru", "--dropout", 0.1], "--dropout; did you mean --set model.dropout=0.1?"),
        ("train", ["--stepss", 3], "--stepss (Possible options: --epochs, --set, --steps)"),
    ],
)
def test_options_of_the_configuration_suggest_set(
    chainrule: Call, place: Path, verb: str, given: list[object], suggestion: str
) -> None:
    done = chainrule(verb, place / "pairs.txt", *given)
    assert (done.code, done.err.splitlines()[-1]) == (2, f"Error: No such option: {suggestion}")


def test_unknown_names_suggest_the_nearest(chainrule: Call, place: Path, tmp_path: Path) -> None:
    train = ["train", place / "pairs.txt", "--steps", 1, "--tokenizer", "char", "--out", tmp_path / "run"]
    line = refused(result_without_notes(chainrule(*train, "--model", "lsmt")))
    assert line.startswith("unknown model 'lsmt': did you mean 'lstm'? Known: at, average, bert, ")
    line = refused(result_without_notes(chainrule(*train, "--output", "softmx")))
    assert line.startswith("unknown output layer 'softmx': did you mean 'softmax'?")
    line = refused(result_without_notes(chainrule(*train, "--set", "model.hiden=3")))
    assert line.startswith("unknown option 'model.hiden': did you mean 'model.hidden'?")
    line = refused(chainrule(*train, "--set", "training.stps=3"))
    assert line.startswith("unknown option 'training.stps': did you mean 'training.steps'?")
    chra = chainrule("train", place / "pairs.txt", "--tokenizer", "chra", "--out", tmp_path / "run")
    line = refused(result_without_notes(chra))
    assert "did you mean 'char'?" in line
    done = chainrule(*train, *[o for s in SMALL for o in ("--set", s)], "--json")  # the failed commands left no run
    assert done.json()["steps"] == 1


def result_without_notes(result: Result) -> Result:
    """The result without the notes that come before the message."""
    lines = [line for line in result.err.splitlines(keepends=True) if not line.startswith("tokeniser: ")]
    return Result(result.code, result.out, "".join(lines))


def test_messages_of_wrong_values_and_combinations(chainrule: Call, run: Path, place: Path) -> None:
    line = refused(chainrule("train", place / "pairs.txt", "--set", "training.lr=-1"))
    assert line == "training.lr = -1: input should be greater than 0"
    line = refused(chainrule("train", place / "pairs.txt", "--set", "nonsense"))
    assert line == "--set got 'nonsense'; expected KEY=VALUE, for example --set model.hidden=200"
    line = refused(chainrule("generate", run, "--num-beams", 3, "--temperature", 1))
    assert line == "num_beams searches, but temperature, top_k, top_p and min_p sample; give one or the other"
    line = refused(chainrule("generate", run, "--num-return-sequences", 3))
    assert line == (
        "num_return_sequences is 3, but greedy search finds one text and a beam of 1 at most 1; "
        "sample (temperature=1) or widen the beam"
    )
    line = refused(chainrule("train", place / "pairs.txt", "--config", place / "none.toml"))
    assert line == f"no configuration file at {place / 'none.toml'}; give the path of a .toml file"


def test_message_of_other_options_for_the_same_folder(chainrule: Call, run: Path, place: Path) -> None:
    before = (run / "model.safetensors").read_bytes()
    line = refused(chainrule("train", place / "pairs.txt", "--tokenizer", "char", "--model", "gru", "--out", run))
    assert line.startswith(f"{run} was made with other options (")
    assert line.endswith("); rerun the command it was made with to resume, or choose another --out")
    assert (run / "model.safetensors").read_bytes() == before


def test_messages_of_a_missing_run_and_a_missing_text(chainrule: Call, run: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert refused(chainrule("info", gone)) == (f"no run at {gone}; train one with: chainrule train TEXT --out {gone}")
    assert refused(chainrule("eval", tmp_path, run / "signature")) == (
        f"{tmp_path} is not a run: it has no config.toml; give a folder that chainrule train made"
    )
    assert str(gone) in refused(chainrule("eval", run, gone))
