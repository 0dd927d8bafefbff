"""chainrule generate"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.common import Json, RunPath, Seed, print_json, say
from chainrule.cli.score import read_prompt

if TYPE_CHECKING:
    from chainrule.runs.language_model import Generated, Run


def generate(
    run: RunPath,
    prompt: Annotated[str, typer.Option(help="What to continue; - reads it from standard input.")] = "",
    prompt_file: Annotated[
        Path | None, typer.Option(help="A file to continue, such as one of examples; --prompt comes after it.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Stop after so many tokens.")] = 200,
    num_beams: Annotated[int, typer.Option(help="Beam search with so many hypotheses.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="Beam search divides log p by length to this power.")] = 1.0,
    temperature: Annotated[float | None, typer.Option(help="Sample; below 1 is safer, above 1 bolder.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k best tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample among the best tokens that hold p of the probability.")
    ] = None,
    num_return_sequences: Annotated[int, typer.Option(help="So many texts: sampled, or the n best of the beam.")] = 1,
    seed: Seed = None,
    stop_at_eos: Annotated[
        bool | None,
        typer.Option("--stop-at-eos/--no-stop-at-eos", help="End with the line (default: for words yes, else no)."),
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text, in which \\n is a newline; may be repeated.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="RUN|lookup", help="A cheaper run that drafts; the text stays the same.")
    ] = None,
    draft_tokens: Annotated[int, typer.Option(help="Tokens drafted at once at most.")] = 8,
    json: Json = False,
) -> None:
    """Continue a prompt: greedy, by beam search, or by sampling; one text is shown while it is made."""
    from chainrule import api

    loaded = api.load(run)
    prompt = sys.stdin.read() if prompt == "-" else prompt
    if prompt_file is not None:
        prompt = read_prompt(prompt_file) + prompt if prompt else read_prompt(prompt_file).removesuffix("\n")
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "stop_at_eos": stop_at_eos,
        "stop": [text.replace("\\n", "\n").replace("\\t", "\t") for text in stop or []],
    }
    options |= {"draft": draft if draft in (None, "lookup") else api.load(draft), "draft_tokens": draft_tokens}
    for one in (loaded, options["draft"]):
        getattr(one, "model", None)  # loaded before the clock starts
    if not json and num_beams == 1 and num_return_sequences == 1:
        _show(loaded, prompt, options)
        return
    options |= {"num_beams": num_beams, "length_penalty": length_penalty, "num_return_sequences": num_return_sequences}
    began = time.perf_counter()
    texts = loaded.generate(prompt, **options)
    rate = sum(text.tokens for text in texts) / (time.perf_counter() - began)
    _report(loaded, texts, rate, options, json)


def _show(run: Run, prompt: str, options: dict[str, Any]) -> None:
    """Print one text while it is made, then how its draft fared."""
    from chainrule.base.devices import threads
    from chainrule.decoding import Drafted
    from chainrule.inference.drafts import told_in_words

    pieces, drafted = [], Drafted()
    with threads(1):  # single rows are quickest with one
        for piece in run.stream(prompt, **options, drafted=drafted):
            pieces.append(piece)
            print(piece, end="", flush=True)
    print()
    if options["draft"] is not None:
        say(told_in_words(drafted, _plain_step(run, "".join(pieces), options)))


def _report(run: Run, texts: list[Generated], rate: float, options: dict[str, Any], json: bool) -> None:
    from chainrule.inference.drafts import told

    if json:
        first = texts[0]
        log_probs = {"log_probs": [text.log_prob for text in texts]} if first.log_prob is not None else {}
        found = {"texts": [text.text for text in texts], **log_probs, "tokens_per_second": round(rate, 1)}
        if first.drafted is not None:
            found["draft"] = told(first.drafted, _plain_step(run, first.text, options))
        print_json(found)
        return
    for number, text in enumerate(texts, 1):
        if len(texts) > 1:
            known = "" if text.log_prob is None else f", log p {text.log_prob:.3f}"
            say(f"--- {number}{known}")
        print(text.text)


def _plain_step(run: Run, text: str, options: dict[str, Any]) -> float:
    """Seconds of a step without a draft, after a text, chosen from as the text was."""
    from chainrule.base.devices import threads
    from chainrule.inference.drafts import plain_step_seconds
    from chainrule.runs.language_model import chooser

    choose = chooser(options["temperature"], options["top_k"], options["top_p"], seed=0)
    with threads(1):
        return plain_step_seconds(run, text, choose)
