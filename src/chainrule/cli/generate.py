"""chainrule generate"""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from chainrule.cli.common import Json, RunPath, Seed, print_json, say


def generate(
    run: RunPath,
    prompt: Annotated[str, typer.Option(help="What to continue; - reads it from standard input.")] = "",
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
    json: Json = False,
) -> None:
    """Continue a prompt: greedy, by beam search, or by sampling; one text is shown while it is made."""
    from chainrule import api

    loaded = api.load(run)
    prompt = sys.stdin.read() if prompt == "-" else prompt
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "stop_at_eos": stop_at_eos,
    }
    if not json and num_beams == 1 and num_return_sequences == 1:
        for piece in loaded.stream(prompt, **options):
            print(piece, end="", flush=True)
        print()
        return
    options |= {"num_beams": num_beams, "length_penalty": length_penalty, "num_return_sequences": num_return_sequences}
    loaded.model  # noqa: B018  loaded before the clock starts
    began = time.perf_counter()
    texts = loaded.generate(prompt, **options)
    rate = sum(text.tokens for text in texts) / (time.perf_counter() - began)
    _report(texts, rate, json)


def _report(texts: list[Any], rate: float, json: bool) -> None:
    if json:
        log_probs = {"log_probs": [text.log_prob for text in texts]} if texts[0].log_prob is not None else {}
        print_json({"texts": [text.text for text in texts], **log_probs, "tokens_per_second": round(rate, 1)})
        return
    for number, text in enumerate(texts, 1):
        if len(texts) > 1:
            known = "" if text.log_prob is None else f", log p {text.log_prob:.3f}"
            say(f"--- {number}{known}")
        print(text.text)
