"""chainrule generate"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.common import (
    Json,
    LiveSettings,
    MinNewTokens,
    NoRepeatNgramSize,
    NoUnk,
    Precision,
    RepetitionPenalty,
    RunPath,
    Seed,
    print_json,
    print_note,
    read_lines,
)
from chainrule.cli.score import read_prompt

if TYPE_CHECKING:
    from chainrule.inference.generate import Generated
    from chainrule.runs.language_model import LanguageModelRun


PromptFile = Annotated[
    Path | None,
    typer.Option(help="File with the text to continue, for example few-shot examples; --prompt is appended."),
]
Prompts = Annotated[
    Path | None,
    typer.Option(help="File with one prompt per line, - is standard input; prints one text per line, with \\n inside."),
]
LengthPenalty = Annotated[float, typer.Option(help="Beam search: rank hypotheses by log p / length^PENALTY.")]
Temperature = Annotated[
    float | None,
    typer.Option(help="Sample at this temperature: below 1 favours probable tokens, above 1 rare ones."),
]
TopP = Annotated[
    float | None, typer.Option(help="Sample from the most probable tokens whose probabilities add up to p.")
]
MinP = Annotated[
    float | None, typer.Option(help="Sample from the tokens that are at least p times as probable as the best one.")
]
NumReturnSequences = Annotated[int, typer.Option(help="Number of texts: samples, or the best hypotheses of the beam.")]
StopAtEos = Annotated[
    bool | None,
    typer.Option(
        "--stop-at-eos/--no-stop-at-eos", help="Stop at the end of the line (default: only for word tokenisers)."
    ),
]
Stop = Annotated[list[str] | None, typer.Option(help="Stop before this text; \\n stands for a newline; repeatable.")]
Draft = Annotated[
    str | None,
    typer.Option(
        metavar="RUN|lookup",
        help="Speed up generation with drafts of a smaller run or of lookup; the output is unchanged.",
    ),
]

Mode = Annotated[
    str,
    typer.Option(
        metavar="ar|nar|draft",
        help="hybrid-lm: ar token by token, nar whole blocks in parallel, draft the text of ar with drafts of its own.",
    ),
]


def generate(
    run: RunPath,
    prompt: Annotated[str, typer.Option(help="Text to continue; - reads it from standard input.")] = "",
    prompt_file: PromptFile = None,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens to generate.")] = 200,
    num_beams: Annotated[int, typer.Option(help="Beam width; 1 searches greedily.")] = 1,
    length_penalty: LengthPenalty = 1.0,
    temperature: Temperature = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most probable tokens.")] = None,
    top_p: TopP = None,
    min_p: MinP = None,
    num_return_sequences: NumReturnSequences = 1,
    seed: Seed = None,
    stop_at_eos: StopAtEos = None,
    stop: Stop = None,
    draft: Draft = None,
    draft_tokens: Annotated[int, typer.Option(help="Maximum number of tokens per draft.")] = 8,
    settings: LiveSettings = None,
    precision: Precision = None,
    mode: Mode = "ar",
    min_new_tokens: MinNewTokens = 0,
    repetition_penalty: RepetitionPenalty = 1.0,
    no_repeat_ngram_size: NoRepeatNgramSize = 0,
    no_unk: NoUnk = False,
    prompts: Prompts = None,
    json: Json = False,
) -> None:
    """Continue a prompt by greedy search, beam search or sampling.

    A single text is printed while it is generated.
    """
    from chainrule.config import parse_settings
    from chainrule.runs.language_model import LanguageModelRun
    from chainrule.runs.load import load_for

    loaded = load_for("generate", LanguageModelRun, run, settings=parse_settings(settings or []), precision=precision)
    prompt = sys.stdin.read() if prompt == "-" else prompt
    if prompt_file is not None:
        prompt = read_prompt(prompt_file) + prompt if prompt else read_prompt(prompt_file).removesuffix("\n")
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "no_unk": no_unk,
        "min_new_tokens": min_new_tokens,
        "stop_at_eos": stop_at_eos,
        "stop": [text.replace("\\n", "\n").replace("\\t", "\t") for text in stop or []],
    }
    drafts = None if draft in (None, "lookup") else load_for("generate", LanguageModelRun, str(draft))
    options |= {"draft": drafts or draft, "draft_tokens": draft_tokens, "mode": mode}
    for one in (loaded, drafts):
        _ = one and one.model  # loaded before the clock starts
    search = {"num_beams": num_beams, "length_penalty": length_penalty, "num_return_sequences": num_return_sequences}
    if prompts is not None:
        _check_prompts(prompt, prompt_file)
        _continue_lines(loaded, prompts, options | search, json)
        return
    if not json and num_beams == 1 and num_return_sequences == 1:
        _show(loaded, prompt, options)
        return
    options |= search
    began = time.perf_counter()
    texts = loaded.generate(prompt, **options)
    rate = sum(text.tokens for text in texts) / (time.perf_counter() - began)
    _report(loaded, texts, rate, options, json)


def _check_prompts(prompt: str, prompt_file: Path | None) -> None:
    from chainrule.errors import ConfigError

    if prompt or prompt_file is not None:
        raise ConfigError("--prompts is given besides --prompt or --prompt-file; leave one of them out")


def _continue_lines(run: LanguageModelRun, file: Path, options: dict[str, Any], json: bool) -> None:
    """Continue each line of a file -> one text per line, or one JSON object."""
    began, tokens, number = time.perf_counter(), 0, 0
    for number, prompt in enumerate(read_lines(file), start=1):
        texts = run.generate(prompt, **options)
        tokens += sum(text.tokens for text in texts)
        if json:
            print_json({"id": number - 1, "prompt": prompt, **_record(texts)})
            continue
        for text in texts:
            print(text.text.removesuffix("\n").replace("\n", "\\n"), flush=True)
    seconds = time.perf_counter() - began
    print_note(f"{number:,} prompts, {tokens / seconds:,.0f} tokens/s")


def _record(texts: list[Generated]) -> dict[str, Any]:
    """The fields of JSON: texts, and their log p where it is known."""
    log_probs = {"log_probs": [text.log_prob for text in texts]} if texts[0].log_prob is not None else {}
    return {"texts": [text.text for text in texts], **log_probs}


def _show(run: LanguageModelRun, prompt: str, options: dict[str, Any]) -> None:
    """Print one text while it is generated, then the statistics of its passes."""
    from chainrule.base.devices import threads
    from chainrule.decoding import DraftStatistics
    from chainrule.inference.drafts import draft_summary, pass_summary

    pieces, drafted = [], DraftStatistics()
    with threads(1):  # one row at a time is fastest with one thread
        for piece in run.stream(prompt, **options, drafted=drafted):
            pieces.append(piece)
            print(piece, end="", flush=True)
    print()
    if options["draft"] is not None or options["mode"] != "ar":
        summary = pass_summary if options["mode"] == "nar" else draft_summary
        print_note(summary(drafted, _plain_step(run, "".join(pieces), options)))


def _report(run: LanguageModelRun, texts: list[Generated], rate: float, options: dict[str, Any], json: bool) -> None:
    from chainrule.inference.drafts import draft_figures, pass_figures

    if json:
        first = texts[0]
        record = {**_record(texts), "tokens_per_second": round(rate, 1)}
        if first.drafted is not None:
            seconds = _plain_step(run, first.text, options)
            if options["mode"] != "ar":
                record |= {"mode": options["mode"], **pass_figures(first.drafted, seconds)}
            if options["mode"] != "nar":
                record["draft"] = draft_figures(first.drafted, seconds)
        print_json(record)
        return
    for number, text in enumerate(texts, 1):
        if len(texts) > 1:
            score = "" if text.log_prob is None else f", log p {text.log_prob:.3f}"
            print_note(f"--- {number}{score}")
        print(text.text)


def _plain_step(run: LanguageModelRun, text: str, options: dict[str, Any]) -> float:
    """Seconds of one step without a draft, after `text` and with the same sampling options."""
    from chainrule.base.devices import threads
    from chainrule.inference.drafts import plain_step_seconds
    from chainrule.inference.generation_options import GenerationOptions

    sampling = {name: options[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    choose = GenerationOptions(**sampling, seed=0).chooser(run.model)
    with threads(1):
        return plain_step_seconds(run.subject, text, choose)
