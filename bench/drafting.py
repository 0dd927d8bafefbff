"""Generation speed at batch 1 with and without drafts, for a language model of characters.

    drafting.py --text SHAKESPEARE [--minutes 4]     trains a Transformer (4 layers, 128 wide) and a 6-gram first
    drafting.py --runs RUN DRAFT                     uses two existing runs

Five prompts are continued by 200 tokens each. The texts must be identical, token for token. A draft run is measured as
`generate --draft RUN` uses it, which first looks up longer repetitions in the text, and alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from harness import Figure, alternate, arguments, begin, report, speed, speed_up

import chainrule as cr
from chainrule.base.devices import threads
from chainrule.decoding import (
    Chooser,
    Drafter,
    DraftStatistics,
    Greedy,
    LookupDrafter,
    Sample,
    StepperDrafter,
    generate,
    generate_with_drafts,
)
from chainrule.inference.drafts import open_draft
from chainrule.text.samples.texts import english_text

PROMPTS, SEED = ("ROMEO:\n", "First Citizen:\n", "The king", "KING RICHARD III:\nNow", "What is"), 1
SHAPE = {"embedding": 128, "layers": 4, "heads": 4, "context": 128}


@contextmanager
def runs(text: Path | None, minutes: float, quick: bool) -> Iterator[tuple[cr.Run, cr.Run]]:
    """Train a Transformer and an n-gram model on the same characters."""
    with tempfile.TemporaryDirectory() as folder:
        if text is None:
            text = Path(folder, "text.txt")
            text.write_text(english_text(), encoding="utf-8")
        budget = {"steps": 5} if quick else {"minutes": minutes}
        model, draft = Path(folder, "model"), Path(folder, "draft")
        network = cr.train(text, model="transformer", tokenizer="char", out=model, **budget, **SHAPE)  # type: ignore[arg-type]
        yield network, cr.train(text, model="ngram", tokenizer="char", out=draft, order=6)


def plain_tokens(run: cr.Run, choice: Callable[[], Chooser], length: int) -> list[int]:
    """Return the tokens that the run generates after each prompt without drafts."""
    written: list[int] = []
    for prompt in PROMPTS:
        prompt_T, eos = torch.tensor(run.tokenizer.encode_block(prompt).tolist()), run.tokenizer.eos
        with threads(1):
            (found,) = generate(run.model, prompt_T, eos=None, bos=eos, max_new_tokens=length, choose=choice())
        written += found.tolist()
    return written


def drafted_tokens(
    run: cr.Run, choice: Callable[[], Chooser], length: int, drafter: Callable[[], Drafter]
) -> tuple[list[int], DraftStatistics]:
    """Return the tokens that the run generates with drafts, and the statistics of the drafts."""
    written: list[int] = []
    statistics = DraftStatistics()
    for prompt in PROMPTS:
        prompt_1T = torch.tensor([[run.tokenizer.eos, *run.tokenizer.encode_block(prompt).tolist()]])
        with threads(1), torch.inference_mode():
            found, one = generate_with_drafts(
                run.model, run.model.start(1), prompt_1T, drafter(), None, length, choice()
            )
        written += found
        statistics.add(one)
    return written, statistics


def choices() -> dict[str, Callable[[], Chooser]]:
    """Return the ways to choose tokens."""
    return {
        "greedy": Greedy,
        "temperature 1": lambda: Sample(generator=torch.Generator().manual_seed(SEED)),
    }


def drafters(run: cr.Run, draft: cr.Run) -> dict[str, Callable[[], Drafter]]:
    """Return the sources of drafts."""
    return {
        f"--draft {draft.config.model.name}": open_draft(run.subject, draft.subject).for_text,
        f"{draft.config.model.name} alone": lambda: StepperDrafter(draft.model, draft.model.start(1)),
        "--draft lookup": LookupDrafter,
    }


def measure(run: cr.Run, draft: cr.Run, length: int, repeats: int) -> list[Figure]:
    """Return one figure per way of choosing and drafter; only the first has a target."""
    figures = []
    for way, choice in choices().items():
        expected, statistics = plain_tokens(run, choice, length), {}
        contestants: dict[str, Callable[[], object]] = {"plain": partial(plain_tokens, run, choice, length)}
        for name, drafter in drafters(run, draft).items():
            found, statistics[name] = drafted_tokens(run, choice, length, drafter)
            if found != expected:
                raise SystemExit(f"{way}: the text with {name} differs from the text without drafts")
            contestants[name] = partial(drafted_tokens, run, choice, length, drafter)
        times = alternate(contestants, repeats)
        for name, one in statistics.items():
            figures.append(
                Figure(
                    f"{way}, {name}",
                    speed(times, name, len(expected)),
                    "tokens/s",
                    speed(times, "plain", len(expected)),
                    speed_up(times, name, "plain"),
                    at_least=None if figures else 1.3,
                    note=f"same texts, {one.tokens_per_pass:.2f} tokens per pass, {one.acceptance:.0%} accepted",
                )
            )
    return figures


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--text", type=Path, help="training text (default: the built-in text)")
    parser.add_argument("--minutes", type=float, default=4, help="training time (default: %(default)s)")
    parser.add_argument("--runs", type=Path, nargs=2, metavar=("RUN", "DRAFT"), help="existing runs")
    options = begin(parser)
    length = 20 if options.quick else 200
    if options.runs:
        run, draft = (cr.load(path, device="cpu") for path in options.runs)
        figures = measure(run, draft, length, options.repeats)
    else:
        with runs(options.text, options.minutes, options.quick) as (run, draft):
            figures = measure(run, draft, length, options.repeats)
    report(
        figures,
        options,
        peer="the same run without drafts",
        tokens=length * len(PROMPTS),
        run=repr(run),
        draft=repr(draft),
    )


if __name__ == "__main__":
    main()
