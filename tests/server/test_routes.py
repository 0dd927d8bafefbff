"""Routes that are one call of a verb give what the verb gives."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx2
import numpy as np
import openai
import pytest
from starlette.testclient import TestClient

import chainrule as cr
from chainrule.runs.labels import ClassifierRun, TaggerRun
from chainrule.runs.language_model import LanguageModelRun
from chainrule.runs.masked import MaskedRun
from chainrule.runs.translator import TranslatorRun
from services import Service

LINES = ["abab", "", "cdcdcd", "azb"]


@pytest.mark.parametrize("name", ["ngram", "lstm", "mixture"])
@pytest.mark.parametrize("tokens", [False, True])
def test_lines_are_scored_as_the_verb_scores_them(service: Service, runs: Path, name: str, tokens: bool) -> None:
    run = cr.load(runs / name)
    assert isinstance(run, LanguageModelRun)
    answer = service.post("/score", {"model": name, "input": LINES, "tokens": tokens}).json()
    expected = run.score(LINES)
    assert [one["log_prob"] for one in answer["data"]] == pytest.approx([one.log_prob for one in expected], abs=1e-4)
    assert [one["tokens"] for one in answer["data"]] == [one.tokens for one in expected]
    if tokens:
        assert [one["pieces"] for one in answer["data"]] == [one.pieces for one in expected]
    spelled = service.post("/score", {"model": name, "input": LINES, "oov": "spell"}).json()
    assert spelled["data"][3]["log_prob"] < answer["data"][3]["log_prob"] - 1
    assert spelled["data"][0]["log_prob"] == pytest.approx(answer["data"][0]["log_prob"], abs=1e-4)


def test_lines_are_texts_and_never_files(service: Service, runs: Path) -> None:
    """A list of existing paths given to a run in Python is a corpus; from a client it is text."""
    path = str(runs / "ngram" / "config.toml")
    answer = service.post("/score", {"model": "ngram", "input": [path]}).json()
    assert [one["tokens"] for one in answer["data"]] == [len(path) + 1]


def test_a_newline_in_a_line_is_refused(service: Service) -> None:
    answer = service.post("/score", {"model": "ngram", "input": "a\nb"})
    assert answer.status_code == 400
    assert "takes lines" in answer.json()["error"]["message"]


def test_embeddings_as_numbers_and_as_base64(service: Service, runs: Path) -> None:
    client, run = service.client(), cr.load(runs / "lstm")
    expected_ND = run.embed(["abab", "cd"])
    plain = client.embeddings.create(model="lstm", input=["abab", "cd"], encoding_format="float")
    packed = client.embeddings.create(model="lstm", input=["abab", "cd"])  # the client asks for base64
    ids = client.embeddings.create(model="lstm", input=run.tokenizer.encode("abab"))
    np.testing.assert_allclose([one.embedding for one in plain.data], expected_ND, atol=1e-5)
    np.testing.assert_allclose([one.embedding for one in packed.data], expected_ND, atol=1e-5)
    np.testing.assert_allclose(ids.data[0].embedding, expected_ND[0], atol=1e-5)
    assert plain.usage.prompt_tokens == 6
    with pytest.raises(openai.BadRequestError, match="dimensions is 3; this model has 16"):
        client.embeddings.create(model="lstm", input="a", dimensions=3)


def test_texts_are_classified_as_by_the_verb(service: Service, runs: Path) -> None:
    run = cr.load(runs / "more/classifier")
    assert isinstance(run, ClassifierRun)
    answer = service.post("/classify", {"model": "more/classifier", "input": ["good text", "bad text"]}).json()
    for found, expected in zip(answer["data"], run.classify(["good text", "bad text"], top=2), strict=True):
        assert found["label"] == expected[0].label
        probabilities = {one.label: one.probability for one in expected}
        assert found["probabilities"] == pytest.approx(probabilities, abs=1e-5)
    refused = service.post("/tag", {"model": "more/classifier", "input": "a"}).json()["error"]
    assert (refused["code"], refused["param"]) == ("unsupported_model", "model")


def test_pairs_are_classified_as_by_the_verb(tmp_path: Path) -> None:
    labelled, pairs = tmp_path / "pairs.tsv", [("a cat", "a dog"), ("a cat", "a cat")]
    labelled.write_text("".join(f"{'yn'[i % 2]}\ta cat\ta {'dog' if i % 2 else 'cat'}\n" for i in range(40)))
    run = cr.train(labelled, model="classifier", steps=5, out=tmp_path / "pairs", settings={"model": {"pairs": True}})
    with TestClient(cr.serve(tmp_path / "pairs")) as client:
        answer = client.post("/classify", json={"input": pairs}).json()
        assert [one["label"] for one in answer["data"]] == [best[0].label for best in run.classify(pairs)]
        single = client.post("/classify", json={"input": ["a cat", "a dog"]}).json()["error"]["message"]
        assert "pairs (classifier)" not in single
        assert "but pairs was trained on pairs; give two" in single
        wrong = client.post("/classify", json={"input": [["a", "b", "c"]]}).json()["error"]["message"]
        assert wrong == 'input is [["a", "b", "c"]]; expected a text, a list of texts or a list of pairs of texts'


def test_words_are_tagged_as_by_the_verb(service: Service, runs: Path) -> None:
    run = cr.load(runs / "more/tagger")
    assert isinstance(run, TaggerRun)
    expected = run.tag([["the", "dog", "ran"], ["a", "cat"]])
    for given in (["the dog ran", "a cat"], [["the", "dog", "ran"], ["a", "cat"]]):
        answer = service.post("/tag", {"model": "more/tagger", "input": given}).json()
        assert [one["tags"] for one in answer["data"]] == expected
        assert answer["data"][1]["words"] == ["a", "cat"]


def test_gaps_are_filled_as_by_the_verb(service: Service, runs: Path) -> None:
    run = cr.load(runs / "more/bert")
    assert isinstance(run, MaskedRun)
    answer = service.post("/fill", {"model": "more/bert", "input": "ab[MASK]b", "top": 3}).json()
    [expected] = run.fill("ab[MASK]b", 3)
    [found] = answer["data"][0]["filled"]
    assert [guess["word"] for guess in found] == [guess.word for guess in expected.guesses]
    assert service.post("/fill", {"model": "more/bert", "input": "abab"}).status_code == 400


def test_neighbours_are_those_of_the_verb(service: Service, runs: Path) -> None:
    expected = [one._asdict() for one in cr.load(runs / "lstm").neighbours("a", 3)]
    answer = service.post("/neighbours", {"model": "lstm", "word": "a", "top": 3}).json()
    assert [one["word"] for one in answer["neighbours"]] == [one["word"] for one in expected]
    assert service.post("/neighbours", {"model": "lstm"}).status_code == 400
    unknown = service.post("/neighbours", {"model": "lstm", "word": "nothing"})
    assert unknown.status_code == 400
    short = service.post("/neighbours", {"model": "lstm", "analogy": ["a", "b"]}).json()["error"]["message"]
    assert short == 'analogy is ["a", "b"]; expected at least 3 entries'


def test_translations_in_the_form_of_libretranslate(service: Service, runs: Path) -> None:
    run = cr.load(runs / "more/translator")
    assert isinstance(run, TranslatorRun)
    assert httpx2.get(f"{service.url}/languages").json() == [{"code": "xx", "name": "xx", "targets": ["yy"]}]
    body = {"q": "abc", "source": "xx", "target": "yy", "format": "text"}
    assert service.post("/translate", body).json()["translatedText"] == run.translate("abc")
    several = service.post("/translate", {**body, "q": ["abc", "dd"], "alternatives": 2, "scores": True}).json()
    expected = list(run.translate_lines(["abc", "dd"], num_return_sequences=3))
    assert several["translatedText"] == [best[0].text for best in expected]
    assert several["alternatives"] == [[one.text for one in best[1:]] for best in expected]
    assert several["scores"][0] == pytest.approx([one.score for one in expected[0]], abs=1e-4)
    wrong = service.post("/translate", {**body, "target": "zz"})
    assert wrong.status_code == 400
    assert "more/translator (xx to yy)" in wrong.json()["error"]
    assert "alternatives is 1000" in service.post("/translate", {**body, "alternatives": 1000}).text


def test_forms_and_texts_of_several_lines_are_translated_as_libretranslate_does(service: Service, runs: Path) -> None:
    """Its client for Python sends forms."""
    run = cr.load(runs / "more/translator")
    assert isinstance(run, TranslatorRun)
    lines = [run.translate("abc"), "", run.translate("dd")]
    form = {"q": "abc\r\n\r\ndd", "source": "xx", "target": "yy", "format": "text", "api_key": ""}
    assert httpx2.post(f"{service.url}/translate", data=form).json()["translatedText"] == "\n".join(lines)
    with_numbers = httpx2.post(f"{service.url}/translate", data={**form, "q": "dd", "alternatives": "2"}).json()
    assert len(with_numbers["alternatives"]) == 2
    body = {"q": ["abc\n\ndd", "abc"], "source": "xx", "target": "yy"}
    assert service.post("/translate", body).json()["translatedText"] == ["\n".join(lines), lines[0]]
    refused = service.post("/translate", {**body, "scores": True})
    assert "give a list with one line each" in refused.json()["error"]
    unknown = httpx2.post(f"{service.url}/translate", data={**form, "colour": "red"}).json()["error"]
    assert unknown.startswith("unknown field 'colour'")
    headers = {"content-type": "application/x-www-form-urlencoded"}  # as curl -d sends JSON
    answer = httpx2.post(f"{service.url}/translate", content=b' {"q": "abc"}', headers=headers).json()
    assert answer["translatedText"] == lines[0]
    broken = httpx2.post(f"{service.url}/translate", content=b"q=%ff", headers=headers)
    assert (broken.status_code, broken.json()["error"][:26]) == (400, "the request is no form in ")


def test_html_is_translated_between_its_tags(service: Service, runs: Path) -> None:
    run = cr.load(runs / "more/translator")
    assert isinstance(run, TranslatorRun)
    page = '<p class="a">abc <b>dd</b></p>\n<!-- abc -->'
    body = {"source": "xx", "target": "yy", "format": "html"}
    expected = f'<p class="a">{run.translate("abc")} <b>{run.translate("dd")}</b></p>\n<!-- abc -->'
    assert service.post("/translate", {**body, "q": page}).json()["translatedText"] == expected
    several = service.post("/translate", {**body, "q": [page, "<br>", "dd"]}).json()["translatedText"]
    assert several == [expected, "<br>", run.translate("dd")]
    refused = service.post("/translate", {**body, "q": page, "alternatives": 2})
    assert refused.json() == {"error": "alternatives, scores and attention need the format text; leave them out"}
    other = service.post("/translate", {**body, "q": page, "format": "xml"})
    assert other.json() == {"error": "format is \"xml\"; expected 'text' or 'html'"}


def test_a_language_that_is_not_given_is_assumed_and_not_detected(service: Service, runs: Path) -> None:
    assumed = {"language": "xx", "confidence": 0.0}
    for body in ({"q": "abc", "source": "auto", "target": "yy"}, {"q": "abc", "model": "more/translator"}):
        assert service.post("/translate", body).json()["detectedLanguage"] == assumed
    several = service.post("/translate", {"q": ["abc", "dd"], "source": "auto", "target": "yy"}).json()
    assert several["detectedLanguage"] == [assumed, assumed]
    given = service.post("/translate", {"q": "abc", "source": "xx", "target": "yy"}).json()
    assert "detectedLanguage" not in given
    translator = runs / "more/translator"
    with TestClient(cr.serve(translator)) as client:  # which languages these are is unknown
        assert "detectedLanguage" not in client.post("/translate", json={"q": "abc", "source": "auto"}).json()


def test_two_source_languages_are_not_told_apart(runs: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(runs / "more/translator", tmp_path / name)
    languages = {"one": ("xx", "yy"), "two": ("zz", "yy")}
    with TestClient(cr.serve([tmp_path / "one", tmp_path / "two"], languages=languages)) as client:
        refused = client.post("/translate", json={"q": "abc", "source": "auto", "target": "yy"})
        assert refused.status_code == 400
        assert refused.json() == {
            "error": "source is 'auto', but languages are not detected, and this server translates to 'yy' from xx, zz"
            "; give source"
        }
        given = client.post("/translate", json={"q": "abc", "source": "zz", "target": "yy"}).json()
        assert given["model"] == "two"


def test_errors_of_translations_have_the_form_of_libretranslate(runs: Path) -> None:
    """Wherever they are found: before the route, in it, on the engine; other routes have OpenAI's form."""
    with TestClient(cr.serve(runs / "ngram", api_keys=["k"]), headers={"authorization": "Bearer k"}) as client:
        for answer, status in (
            (client.post("/translate", content=b"{"), 400),
            (client.post("/translate", json={"q": "a", "model": "nothing"}), 404),
            (client.post("/translate", json={"q": "a", "model": "ngram"}), 400),
            (client.get("/translate"), 405),
            (client.post("/translate", json={"q": "a"}, headers={"authorization": "Bearer x"}), 401),
            (client.get("/languages", headers={"authorization": "Bearer x"}), 401),
            (client.post("/languages"), 405),
        ):
            assert (answer.status_code, list(answer.json())) == (status, ["error"])
            assert isinstance(answer.json()["error"], str)
        client.headers.pop("authorization")
        unlocked = client.post("/translate", json={"q": "a", "api_key": "x"})
        assert (unlocked.status_code, type(unlocked.json()["error"])) == (401, str)
        other = client.post("/score", json={"input": "a"})
        assert (other.status_code, list(other.json()["error"])) == (401, ["message", "type", "param", "code"])


def test_messages_name_runs_and_no_folders(service: Service, runs: Path) -> None:
    for path, body in (
        ("/v1/completions", {"model": "more/classifier", "prompt": "a"}),
        ("/v1/embeddings", {"model": "ngram", "input": "a"}),
        ("/translate", {"model": "lstm", "q": "a"}),
    ):
        answer = service.post(path, body)
        error = answer.json()["error"]
        message = error if path == "/translate" else error["message"]
        assert answer.status_code == 400  # a client that gets 503 sends it again
        assert message.startswith(body["model"] + " (")
        assert str(runs) not in message
    pairs = service.post("/score", {"model": "more/translator", "input": "a"}).json()["error"]["message"]
    assert pairs == "more/translator (seq2seq-rnn) has score on the command line only; use chainrule score"


def test_one_prompt_is_sent_to_several_runs(service: Service) -> None:
    body = {"prompt": "abab", "max_tokens": 5, "temperature": 0}
    answer = service.post("/compare", {**body, "models": ["ngram", "lstm"]}).json()
    single = [service.post("/v1/completions", {**body, "model": name}).json() for name in ("ngram", "lstm")]
    assert [one["model"] for one in answer["data"]] == ["ngram", "lstm"]
    assert [one["choices"] for one in answer["data"]] == [one["choices"] for one in single]
    assert service.post("/compare", {**body, "models": ["ngram", "nothing"]}).status_code == 404
    for more, message in (
        ({"models": []}, "models is []; expected at least one entry"),
        ({"models": ["ngram"], "stream": True}, "/compare has no streams; leave stream out"),
        ({"models": ["ngram"], "model": "lstm"}, "/compare takes models, a list, instead of model; leave model out"),
    ):
        assert service.post("/compare", {**body, **more}).json()["error"]["message"] == message


def test_text_becomes_ids_and_back(service: Service, runs: Path) -> None:
    tokens = service.post("/tokenize", {"model": "lstm", "prompt": "ab\ncd"}).json()["tokens"]
    assert tokens == cr.load(runs / "lstm").tokenizer.encode_block("ab\ncd").tolist()
    assert service.post("/detokenize", {"model": "lstm", "tokens": tokens}).json()["prompt"] == "ab\ncd"
    assert service.post("/detokenize", {"model": "lstm", "tokens": [10**6]}).status_code == 400
    assert "model is missing" in service.post("/tokenize", {"prompt": "a"}).text
