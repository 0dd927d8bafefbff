"""/v1/completions with the official client, against a real server process."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import openai
import pytest

import chainrule as cr
from chainrule.runs.language_model import LanguageModelRun
from services import Service

LANGUAGE_MODELS = ["ngram", "lstm", "transformer", "mixture"]


def loaded(runs: Path, name: str) -> LanguageModelRun:
    run = cr.load(runs / name)
    assert isinstance(run, LanguageModelRun)
    return run


def test_the_models_are_listed_and_their_names_may_have_slashes(service: Service) -> None:
    client = service.client()
    assert [model.id for model in client.models.list()] == [
        *("lstm", "mixture", "more/bert", "more/classifier", "more/tagger", "more/translator", "ngram", "transformer"),
    ]
    assert client.models.retrieve("more/translator").owned_by == "chainrule"
    with pytest.raises(openai.NotFoundError, match=r"there is no model 'nothing'; this server has lstm"):
        client.models.retrieve("nothing")


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_completion_is_what_the_verb_generates(service: Service, runs: Path, name: str) -> None:
    client, run = service.client(), loaded(runs, name)
    for options, given in (
        ({"temperature": 0}, {}),
        ({"seed": 7, "temperature": 0.8}, {"seed": 7, "temperature": 0.8}),
        ({"seed": 7, "top_p": 0.9}, {"seed": 7, "top_p": 0.9}),
        ({"seed": 7, "extra_body": {"min_p": 0.2}}, {"seed": 7, "min_p": 0.2}),
    ):
        answer = client.completions.create(model=name, prompt="abab", max_tokens=12, **options)  # type: ignore[call-overload]
        expected = run.generate("abab", max_new_tokens=12, **given)[0].text  # type: ignore[arg-type]
        assert "abab" + answer.choices[0].text == expected
        assert answer.choices[0].finish_reason == "length"
        assert answer.system_fingerprint == "chainrule-" + run.fingerprint.hex()
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 12)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_an_echoed_line_has_the_log_probability_of_the_verb(service: Service, runs: Path, name: str) -> None:
    run = loaded(runs, name)
    for line in ("abababab", "cdcd", "azzb"):
        answer = service.client().completions.create(
            model=name, prompt=line + "\n", max_tokens=0, echo=True, logprobs=2
        )
        choice, expected = answer.choices[0], run.score(line)
        assert choice.text == line + "\n"
        assert choice.logprobs.token_logprobs == pytest.approx(expected.log_probs, abs=1e-4)
        assert choice.logprobs.tokens == expected.pieces
        if "z" not in line:  # unknown
            assert choice.logprobs.text_offset == list(range(len(line) + 1))
        assert [len(top) in (2, 3) for top in choice.logprobs.top_logprobs] == [True] * (len(line) + 1)
        bits = [-value / math.log(2) for value in expected.log_probs]
        assert choice.logprobs.model_extra["token_bits"] == pytest.approx(bits, abs=1e-3)
        assert choice.model_extra["bits_per_byte"] >= sum(bits) / (len(line) + 1) - 1e-3


def test_bits_per_byte_are_those_of_eval(service: Service, runs: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("ababab\n", encoding="utf-8")
    answer = service.client().completions.create(model="lstm", prompt="ababab\n", max_tokens=0, echo=True, logprobs=0)
    expected = loaded(runs, "lstm").evaluate(text).bits_per_byte
    assert answer.choices[0].model_extra["bits_per_byte"] == pytest.approx(expected, rel=1e-4)


def test_prompts_in_every_form(service: Service, runs: Path) -> None:
    client, tokenizer = service.client(), loaded(runs, "lstm").tokenizer
    ids = [tokenizer.encode("abab"), tokenizer.encode("cd")]
    forms: list[Any] = ["abab", ["abab", "cd"], ids[0], ids]
    found = [client.completions.create(model="lstm", prompt=form, max_tokens=4, temperature=0) for form in forms]
    assert [len(one.choices) for one in found] == [1, 2, 1, 2]
    assert found[0].choices[0].text == found[1].choices[0].text == found[2].choices[0].text
    assert [one.text for one in found[1].choices] == [one.text for one in found[3].choices]
    several = client.completions.create(model="lstm", prompt=["a", "c"], n=2, max_tokens=3, seed=1)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    again = client.completions.create(model="lstm", prompt="c", n=2, max_tokens=3, seed=1)
    assert [one.text for one in several.choices[2:]] == [one.text for one in again.choices]


def test_no_tokens_and_one_token(service: Service) -> None:
    client = service.client()
    none = client.completions.create(model="lstm", prompt="ab", max_tokens=0)
    assert (none.choices[0].text, none.choices[0].finish_reason, none.usage.completion_tokens) == ("", "length", 0)
    one = client.completions.create(model="lstm", prompt="ab", max_tokens=1, echo=True, logprobs=1, temperature=0)
    assert len(one.choices[0].logprobs.tokens) == 3
    assert one.choices[0].text.startswith("ab")


def test_stop_strings_end_the_text_before_them(service: Service) -> None:
    client = service.client()
    whole = client.completions.create(model="ngram", prompt="abab", max_tokens=30, seed=3).choices[0].text
    stop = whole[4:6]
    cut = client.completions.create(model="ngram", prompt="abab", max_tokens=30, seed=3, stop=stop, logprobs=0).choices[
        0
    ]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"
    assert len(cut.logprobs.tokens) == len(cut.text)
    parts = client.completions.create(model="ngram", prompt="abab", max_tokens=30, seed=3, stop=[stop], stream=True)
    assert "".join(part.choices[0].text for part in parts) == cut.text


def test_a_bias_and_penalties_change_the_choice_and_not_the_probabilities(service: Service, runs: Path) -> None:
    client, tokenizer = service.client(), loaded(runs, "lstm").tokenizer
    z = tokenizer.encode("b")[0]
    options: dict[str, Any] = {"model": "lstm", "prompt": "cdcd", "max_tokens": 5, "temperature": 0, "logprobs": 1}
    biased = client.completions.create(**options, logit_bias={str(z): 100}).choices[0]
    assert biased.text == "bbbbb"
    assert biased.logprobs.token_logprobs[0] < -0.5
    banned = client.completions.create(**options, logit_bias={str(z): 100}, frequency_penalty=2, presence_penalty=2)
    assert banned.choices[0].text == "bbbbb"
    plain = client.completions.create(**{**options, "max_tokens": 12})
    spread = client.completions.create(**{**options, "max_tokens": 12}, frequency_penalty=2, presence_penalty=2)
    assert len(set(spread.choices[0].text)) > len(set(plain.choices[0].text))


def test_best_of_returns_the_texts_with_the_best_mean(service: Service) -> None:
    client = service.client()
    options: dict[str, Any] = {"model": "lstm", "prompt": "ab", "max_tokens": 6, "seed": 5, "logprobs": 0}
    every = client.completions.create(**options, n=6).choices
    best = client.completions.create(**options, n=2, best_of=6)
    means = sorted((-sum(one.logprobs.token_logprobs) / 6, one.text) for one in every)
    assert [one.text for one in best.choices] == [text for _, text in means[:2]]
    assert [one.index for one in best.choices] == [0, 1]
    assert best.usage.completion_tokens == 36


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_stream_has_the_whole_text_and_its_log_probabilities(service: Service, name: str) -> None:
    client = service.client()
    options: dict[str, Any] = {"model": name, "prompt": "abab", "max_tokens": 9, "seed": 2, "logprobs": 1, "echo": True}
    whole = client.completions.create(**options)
    *parts, last = client.completions.create(**options, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage == whole.usage
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    log = [value for part in parts for value in part.choices[0].logprobs.token_logprobs]
    assert log == whole.choices[0].logprobs.token_logprobs
    assert [part.choices[0].finish_reason for part in parts[-2:]] == [None, "length"]


def test_several_texts_are_streamed_beside_each_other(service: Service) -> None:
    client = service.client()
    options: dict[str, Any] = {"model": "lstm", "prompt": ["ab", "cd"], "max_tokens": 7, "seed": 2, "n": 2}
    whole = client.completions.create(**options)
    texts = dict.fromkeys(range(4), "")
    for part in client.completions.create(**options, stream=True):
        texts[part.choices[0].index] += part.choices[0].text
    assert [texts[one.index] for one in whole.choices] == [one.text for one in whole.choices]


def test_top_k_and_modes_of_the_verb(service: Service) -> None:
    client = service.client()
    options: dict[str, Any] = {"model": "lstm", "prompt": "ab", "max_tokens": 9}
    greedy = client.completions.create(**options, temperature=0).choices[0].text
    assert client.completions.create(**options, seed=1, extra_body={"top_k": 1}).choices[0].text == greedy
    assert client.completions.create(**options, temperature=0, extra_body={"mode": "ar"}).choices[0].text == greedy
    with pytest.raises(openai.BadRequestError, match="mode"):
        client.completions.create(**options, extra_body={"mode": "nar"})


def test_a_chat_is_refused_with_a_sentence(service: Service) -> None:
    with pytest.raises(openai.BadRequestError, match="have no chat template; send the conversation as one prompt"):
        service.client().chat.completions.create(model="lstm", messages=[{"role": "user", "content": "hello"}])


def test_without_a_seed_texts_differ(service: Service) -> None:
    texts = {
        service.client().completions.create(model="lstm", prompt="", max_tokens=20).choices[0].text for _ in range(4)
    }
    assert len(texts) > 1


def test_a_beam_and_drafts_are_those_of_the_verb(service: Service, runs: Path) -> None:
    client, run = service.client(), loaded(runs, "lstm")
    beam = client.completions.create(model="lstm", prompt="ab", max_tokens=6, n=2, extra_body={"num_beams": 3})
    expected = run.generate("ab", max_new_tokens=6, num_beams=3, num_return_sequences=2)
    assert ["ab" + one.text for one in beam.choices] == [one.text for one in expected]
    assert beam.choices[0].model_extra["log_prob"] == pytest.approx(expected[0].log_prob, abs=1e-4)
    plain = client.completions.create(model="lstm", prompt="ab", max_tokens=9, temperature=0)
    for draft in ("lookup", "ngram"):
        drafted = client.completions.create(
            model="lstm", prompt="ab", max_tokens=9, temperature=0, extra_body={"draft": draft}
        )
        assert drafted.choices[0].text == plain.choices[0].text
    parts = client.completions.create(
        model="lstm", prompt="ab", max_tokens=9, temperature=0, stream=True, extra_body={"draft": "lookup"}
    )
    assert "".join(part.choices[0].text for part in parts) == plain.choices[0].text


@pytest.mark.parametrize("model", ["ngram", "lstm", "mixture"])
def test_a_draft_does_not_change_a_sample(service: Service, model: str) -> None:
    body = {"model": model, "prompt": "ab", "max_tokens": 40, "seed": 4, "temperature": 0.9, "top_p": 0.95}
    plain = service.post("/v1/completions", body).json()["choices"]
    for draft in ("lookup", "ngram"):
        assert service.post("/v1/completions", {**body, "draft": draft}).json()["choices"] == plain


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({"suffix": "end"}, "suffix is not supported", "suffix"),
    ({"colour": 1}, "unknown field 'colour'", "colour"),
    ({"tempreature": 1}, "did you mean temperature?", "tempreature"),
    ({"max_tokens": -1}, "max_tokens is -1; expected a number greater than or equal to 0", "max_tokens"),
    ({"max_tokens": 10**6}, "this server allows at most 4096", "max_tokens"),
    ({"max_tokens": "3"}, 'max_tokens is "3"; expected a valid integer', "max_tokens"),
    ({"prompt": [1, "a"]}, 'prompt is [1, "a"]; expected a text, a list of texts, a list of integers or', "prompt"),
    ({"logit_bias": {"3": 101}}, "logit_bias.3 is 101; expected a number less than", "logit_bias"),
    ({"stream_options": True}, "stream_options is true; expected an object", "stream_options"),
    ({"stream_options": {"usage": True}}, "'stream_options.usage': known fields: include_usage", "stream_options"),
    ({"num_beams": 2, "n": 3}, "n is 3, but this search finds at most 2; lower n, or raise num_beams", "n"),
    ({"draft": "lookup", "n": 2}, "n is 2, but this search finds at most 1; lower n, or leave draft out", "n"),
    ({"n": 1000}, "n is 1000; this server allows at most 16", "n"),
    ({"n": 3, "best_of": 2}, "best_of must be at least n", "best_of"),
    ({"best_of": 2, "stream": True}, "best_of above n cannot be streamed", "best_of"),
    ({"logprobs": 50}, "at most 20", "logprobs"),
    ({"logit_bias": {"x": 1}}, "logit_bias has a key that is no id", "logit_bias"),
    ({"logit_bias": {"99999": 1}}, "this model has ids from 0 to", "logit_bias"),
    ({"prompt": [99999]}, "prompt has the id 99999", "prompt"),
    ({"prompt": []}, "prompt is an empty list", "prompt"),
    ({"num_beams": 2, "logprobs": 1}, "logprobs does not apply with num_beams", "logprobs"),
    ({"num_beams": 2, "temperature": 1}, "num_beams searches, but temperature", None),
    ({"mode": "sideways"}, "sideways", None),
    ({"stream_options": {}}, "stream_options needs stream", "stream_options"),
    ({"stop": [""]}, "none empty", "stop"),
]


@pytest.mark.parametrize(("fields", "message", "param"), WRONG, ids=[str(one[0]) for one in WRONG])
def test_what_can_never_work_is_a_400(
    service: Service, fields: dict[str, Any], message: str, param: str | None
) -> None:
    answer = service.post("/v1/completions", {"model": "lstm", "prompt": "ab", **fields})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert message in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


REASONS: list[tuple[dict[str, Any], str]] = [
    ({"stop": ["b", "d"]}, "stop"),
    ({"stop_at_eos": True}, "stop"),
    ({"max_tokens": 3}, "length"),
]


@pytest.mark.parametrize(("fields", "reason"), REASONS)
def test_searches_say_why_a_text_ends(service: Service, fields: dict[str, Any], reason: str) -> None:
    """As texts of plain steps do: the text of a stop string and of the newline that ends it is left out."""
    body = {"model": "lstm", "prompt": ["ab", "cd"], "max_tokens": 80, "seed": 1, **fields}
    beam = service.post("/v1/completions", {**body, "num_beams": 2, "length_penalty": 0.0}).json()["choices"]
    plain = service.post("/v1/completions", body).json()
    drafted = service.post("/v1/completions", {**body, "draft": "lookup"}).json()
    for choices in (beam, plain["choices"]):
        assert [one["finish_reason"] for one in choices] == [reason] * 2
        assert not any("b" in one["text"] or "d" in one["text"] for one in choices if "stop" in fields)
        assert not any("\n" in one["text"] for one in choices if "stop_at_eos" in fields)
    assert (drafted["choices"], drafted["usage"]) == (plain["choices"], plain["usage"])
    assert streamed(service, {**body, "draft": "lookup"}) == (plain["choices"], plain["usage"])


def streamed(service: Service, body: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The choices of a streamed completion, put together, and its usage."""
    answer = service.post("/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
    parts = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    choices: dict[int, dict[str, Any]] = {}
    for one in (choice for part in parts for choice in part["choices"]):
        text = choices.get(one["index"], {"text": ""})["text"] + one["text"]
        choices[one["index"]] = {**one, "text": text}
    return [choices[place] for place in sorted(choices)], parts[-1]["usage"]


def test_models_that_do_not_generate_say_so(service: Service) -> None:
    with pytest.raises(openai.BadRequestError, match="has no generate"):
        service.client().completions.create(model="more/classifier", prompt="a")
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        service.client().completions.create(model="gpt", prompt="a")
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        service.client().chat.completions.create(model="lstm", messages=[{"role": "user", "content": "hi"}])
