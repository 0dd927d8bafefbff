"""`chainrule export` and `chainrule import`: files, results and messages."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from chainrule.cli.main import main
from chainrule.interop.arpa.runs import import_arpa
from chainrule.interop.formats import export

TEXT = "the cat sat on the mat\na dog ran to the cat\nthe dog sat\n" * 4
Call = Callable[..., tuple[int, str, str]]

KNOWN = "arpa, ctranslate2, hf, onnx, run, word2vec"


@pytest.fixture
def chainrule(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `chainrule ARGUMENTS…` in this process -> exit code, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["chainrule", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and the run of a trigram model of its words."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    words: dict[str, Any] = {"tokenizer": "word", "settings": {"model": {"order": 3}}}
    cr.train(folder / "text.txt", model="ngram", out=folder / "run", **words)
    return folder


def test_an_exported_run_is_imported_unchanged(trained: Path, tmp_path: Path, chainrule: Call) -> None:
    file, back = tmp_path / "x.arpa.gz", tmp_path / "back"
    code, out, _ = chainrule("export", trained / "run", file, "--to", "arpa", "--json")
    assert code == 0
    written = json.loads(out)
    assert written["path"] == str(file)
    assert written["bytes"] == file.stat().st_size
    code, out, _ = chainrule("import", file, "--out", back, "--json")
    assert code == 0
    made = json.loads(out)
    assert made["run"] == str(back)
    assert made["ngrams"] == written["ngrams"]
    assert made["notes"] == []
    one, other = cr.load(trained / "run"), cr.load(back)
    assert made["vocab_size"] == one.tokenizer.vocab_size
    lines = ["the cat sat", "a zebra ran", ""]
    for first, second in zip(one.score(lines), other.score(lines), strict=True):
        assert second.log_prob == pytest.approx(first.log_prob, abs=1e-5)
    text = trained / "text.txt"
    assert other.evaluate(text).bits_per_byte == pytest.approx(one.evaluate(text).bits_per_byte, rel=1e-6)
    assert other.generate("the")[0].text == one.generate("the")[0].text
    assert other.config.model.options["smoothing"] == "imported"


def test_the_number_of_n_grams_is_printed(trained: Path, tmp_path: Path, chainrule: Call) -> None:
    code, out, _ = chainrule("export", trained / "run", tmp_path / "x.arpa")
    assert code == 0
    words = cr.load(trained / "run").tokenizer.vocab_size
    assert f"1-grams  {words}\n" in out
    code, out, _ = chainrule("import", tmp_path / "x.arpa", "--out", tmp_path / "back")
    assert code == 0
    assert f"vocab size   {words}\n" in out


def test_the_same_import_is_not_repeated(trained: Path, tmp_path: Path, chainrule: Call) -> None:
    file, back = tmp_path / "x.arpa", tmp_path / "back"
    export(trained / "run", file)
    import_arpa(file, back)
    before = (back / "model.safetensors").stat().st_mtime_ns
    code, _, err = chainrule("import", file, "--out", back)
    assert (code, err) == (0, f"{back} is finished already; choose another --out to import it again\n")
    assert (back / "model.safetensors").stat().st_mtime_ns == before


def test_an_import_does_not_overwrite_a_run(trained: Path, tmp_path: Path, chainrule: Call) -> None:
    export(trained / "run", tmp_path / "x.arpa")
    code, _, err = chainrule("import", tmp_path / "x.arpa", "--out", trained / "run")
    assert code == 2
    assert err == (
        f"chainrule: {trained / 'run'} is not empty and was not made by this command; choose another place\n"
    )


def test_a_name_on_a_hub_is_not_downloaded(tmp_path: Path, chainrule: Call) -> None:
    code, _, err = chainrule("import", "some/gpt-2.1", "--out", tmp_path / "back")
    assert code == 2
    assert err == (
        "chainrule: there is no file, folder or installed package 'some/gpt-2.1'; models are not downloaded: fetch the "
        "folder first, for example with: hf download some/gpt-2.1 --local-dir FOLDER\n"
    )
    code, _, err = chainrule("import", tmp_path / "none.arpa", "--out", tmp_path / "back")
    assert (code, err.split("'")[0]) == (2, "chainrule: there is no file ")


def test_the_file_name_is_a_format(tmp_path: Path, chainrule: Call) -> None:
    cr.train(["a b c"] * 20, model="average", steps=1, out=tmp_path / "run", progress=False)
    code, _, err = chainrule("export", tmp_path / "run", tmp_path / "x.arpa.gz")
    assert code == 2
    assert "cannot be exported as arpa" in err
    assert not (tmp_path / "x.arpa.gz").exists()


def test_a_broken_file_leaves_no_run(tmp_path: Path, chainrule: Call) -> None:
    (tmp_path / "x.arpa").write_text(TEXT)
    code, _, err = chainrule("import", tmp_path / "x.arpa", "--out", tmp_path / "back")
    assert code == 2
    assert err == (
        f"chainrule: {tmp_path / 'x.arpa'} is not an ARPA file: it has no line \\data\\; give a model in ARPA format\n"
    )
    assert not (tmp_path / "back").exists()


def test_too_high_an_order_is_refused(tmp_path: Path, chainrule: Call) -> None:
    sections = "".join(f"\n\\{k}-grams:\n" + ("-1 a\n-1 </s>\n-1 <s>\n" if k == 1 else "") for k in range(1, 10))
    counts = "ngram 1=3\n" + "".join(f"ngram {k}=0\n" for k in range(2, 10))
    (tmp_path / "x.arpa").write_text(f"\\data\\\n{counts}{sections}\n\\end\\\n")
    code, _, err = chainrule("import", tmp_path / "x.arpa", "--out", tmp_path / "back")
    assert code == 2
    assert err.splitlines()[-1] == (
        f"chainrule: {tmp_path / 'x.arpa'} has n-grams of 9 words, more than 8; prune it to a lower order"
    )


def test_only_n_grams_and_known_formats_are_exported(trained: Path, tmp_path: Path, chainrule: Call) -> None:
    code, _, err = chainrule("export", trained / "run", tmp_path / "x", "--to", "arp")
    assert (code, err) == (2, f"chainrule: unknown format 'arp': did you mean 'arpa'? Known: {KNOWN}\n")
    small = {"model": {"embedding": 4}}
    cr.train(trained / "text.txt", model="average", tokenizer="word", steps=1, out=tmp_path / "average", settings=small)
    code, _, err = chainrule("export", tmp_path / "average", tmp_path / "x")
    assert code == 2
    assert err == (
        f"chainrule: {tmp_path / 'average'} is a run of the model average, which no format represents; "
        "give --to word2vec to export its word vectors alone\n"
    )
    code, _, err = chainrule("export", tmp_path / "average", tmp_path / "x", "--to", "arpa")
    assert code == 2
    assert err == (
        f"chainrule: {tmp_path / 'average'} cannot be exported as arpa: the model is average, "
        "but an ARPA file holds n-grams; train with --model ngram\n"
    )
    assert not (tmp_path / "x").exists()


def test_the_space_character_is_exported_as_a_sign(trained: Path, tmp_path: Path) -> None:
    settings = {"model": {"order": 3, "across_lines": False}}
    run = cr.train(trained / "text.txt", model="ngram", tokenizer="char", out=tmp_path / "char", settings=settings)
    export(run.folder.path, tmp_path / "x.arpa")
    back = cr.load(import_arpa(tmp_path / "x.arpa", tmp_path / "back").path)
    line = "the dog ran"
    spelled = " ".join(line.replace(" ", "▁"))
    first, second = run.score(line), back.score(spelled)
    assert second.log_prob == pytest.approx(first.log_prob, abs=1e-5)


# Hugging Face folders and word vectors


@pytest.fixture(scope="module")
def gpt(trained: Path) -> Path:
    """The run of a small GPT-2."""
    small = {"embedding": 8, "layers": 1, "heads": 2, "context": 32, "positions": "learned"}
    settings = {"model": small, "output": {"bias": False}}
    run = cr.train(
        trained / "text.txt", model="transformer", tokenizer="word", steps=2, out=trained / "gpt", settings=settings
    )
    return run.folder.path


def test_an_exported_folder_is_imported_unchanged(gpt: Path, tmp_path: Path, chainrule: Call) -> None:
    code, out, err = chainrule("export", gpt, tmp_path / "folder", "--json")  # hf suits the run
    assert (code, err) == (0, "")
    size = sum(file.stat().st_size for file in (tmp_path / "folder").iterdir())
    assert json.loads(out) == {"path": str(tmp_path / "folder"), "format": "hf", "bytes": size}
    code, out, err = chainrule("import", tmp_path / "folder", "--out", tmp_path / "back", "--json")
    assert (code, err) == (0, "")
    made, run, back = json.loads(out), cr.load(gpt), cr.load(tmp_path / "back")
    assert made.keys() == {"run", "seconds", "parameters", "peak_memory", "vocab_size", "notes"}
    assert (made["parameters"], made["vocab_size"]) == (back.parameters, run.tokenizer.vocab_size)
    lines = ["the cat sat", "a zebra ran", ""]
    for first, second in zip(run.score(lines), back.score(lines), strict=True):
        assert second.log_prob == pytest.approx(first.log_prob, abs=1e-5)
    code, out, _ = chainrule("import", tmp_path / "folder", "--out", tmp_path / "shown")
    assert f"vocab size   {run.tokenizer.vocab_size}\n" in out


def test_a_folder_that_cannot_be_read_leaves_no_run(gpt: Path, tmp_path: Path, chainrule: Call) -> None:
    export(gpt, tmp_path / "folder", to="hf")
    (tmp_path / "folder" / "model.safetensors").unlink()
    code, _, err = chainrule("import", tmp_path / "folder", "--out", tmp_path / "back")
    assert (code, err) == (
        2,
        f"chainrule: {tmp_path / 'folder'} has no model.safetensors; load the model with transformers and save "
        "it to the folder again, which writes the file\n",
    )
    assert not (tmp_path / "back").exists()


def test_exported_vectors_are_imported_unchanged(gpt: Path, tmp_path: Path, chainrule: Call) -> None:
    code, out, _ = chainrule("export", gpt, tmp_path / "vectors.txt", "--to", "word2vec", "--json")
    assert code == 0
    words = cr.load(gpt).tokenizer.vocab_size - 2
    written = json.loads(out)
    assert (written["words"], written["vector_size"]) == (words, 8)
    code, out, _ = chainrule("import", tmp_path / "vectors.txt", "--out", tmp_path / "back", "--json")
    assert code == 0
    assert json.loads(out)["vocab_size"] == words + 2
    assert cr.load(tmp_path / "back").config.model.name == "word2vec"


def test_an_unknown_package_is_an_error(tmp_path: Path, chainrule: Call) -> None:
    code, _, err = chainrule("import", "no-such-model", "--out", tmp_path / "back")
    assert code == 2
    assert err.startswith("chainrule: ")
    assert err.count("\n") == 1


# Formats that a training is for


def test_all_obstacles_are_named_before_training(trained: Path, tmp_path: Path, chainrule: Call) -> None:
    data, out = trained / "text.txt", tmp_path / "run"
    options = (
        "--model",
        "transformer",
        "--set",
        "model.norm=post",
        "--output",
        "hierarchical",
        "--set",
        "model.tied=false",
    )
    code, _, err = chainrule("train", data, *options, "--tokenizer", "word", "--for", "hf", "--out", out)
    assert (code, err) == (
        2,
        "chainrule: the run cannot be exported as hf: (1) model.norm is post, but GPT-2 and GPT-NeoX are pre-norm; (2) "
        "the output layer is hierarchical, which has no vector per word; train with --set model.norm=pre --output "
        "softmax\n",
    )
    code, _, err = chainrule("train", data, "--model", "lstm", "--for", "hf", "--out", out)
    assert (code, err) == (
        2,
        "chainrule: the run cannot be exported as hf: the model lstm has no counterpart in Hugging Face (transformer, "
        "bert, t5, seq2seq-transformer have one); train with --model transformer\n",
    )
    code, _, err = chainrule(
        "train", data, "--model", "ngram", "--for", "word2vec", "--tokenizer", "byte", "--out", out
    )
    assert (code, err) == (
        2,
        "chainrule: the run cannot be exported as word2vec: (1) the model is ngram, which has no word vectors; (2) the "
        "space is a token of the tokeniser byte, but separates words; train with --model word2vec --tokenizer word\n",
    )
    code, _, err = chainrule("train", data, "--model", "ngram", "--for", "arp", "--out", out)
    assert (code, err) == (2, f"chainrule: unknown format 'arp': did you mean 'arpa'? Known: {KNOWN}\n")
    assert not out.exists()


def test_the_tokeniser_that_is_chosen_from_the_text_is_checked_too(
    trained: Path, tmp_path: Path, chainrule: Call
) -> None:
    chinese, out = tmp_path / "poems.txt", tmp_path / "run"
    chinese.write_text("床前明月光，疑是地上霜。\n舉頭望明月，低頭思故鄉。\n" * 30, encoding="utf-8")
    code, _, err = chainrule("train", chinese, "--model", "ngram", "--for", "arpa", "--out", out)
    assert code == 2
    assert err.splitlines()[-1] == (
        "chainrule: the run cannot be exported as arpa: the context extends across line ends by default for the "
        "tokeniser char; train with --set model.across_lines=false"
    )
    assert not (out / "config.toml").exists()
    kept = ("--set", "model.across_lines=false")
    assert chainrule("train", chinese, "--model", "ngram", "--for", "arpa", "--out", out, *kept)[0] == 0
    assert chainrule("export", out, tmp_path / "x.arpa")[0] == 0


def test_a_default_transformer_passes_the_check_and_is_exported(trained: Path, tmp_path: Path) -> None:
    small = {"model": {"embedding": 8, "layers": 1, "heads": 2}}
    run = cr.train(
        trained / "text.txt", model="transformer", export_to="hf", steps=1, out=tmp_path / "run", settings=small
    )
    assert export(run.folder.path, tmp_path / "folder").path == tmp_path / "folder"
