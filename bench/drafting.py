"""Generation speed at batch 1 with a draft against the same without, on a language model of characters.

    drafting.py --text SHAKESPEARE [--minutes 4]     trains a Transformer (4 layers, 128 wide) and an n-gram of order 6
    drafting.py --runs RUN DRAFT                     takes two that are there

Five prompts are continued by 200 tokens each, and the texts must be the same, token for token. A draft run is measured
as `generate --draft RUN` uses it, which looks for longer repetitions in the text first, and by itself.
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
from chainrule.experiments.demo import builtin_text
from chainrule.inference.drafts import open_draft

PROMPTS, SEED = ("ROMEO:\n", "First Citizen:\n", "The king", "KING RICHARD III:\nNow", "What is"), 1
SHAPE = {"embedding": 128, "layers": 4, "heads": 4, "context": 128}


@contextmanager
def runs(text: Path | None, minutes: float, quick: bool) -> Iterator[tuple[cr.Run, cr.Run]]:
    """A Transformer and an n-gram model of the same characters, freshly trained."""
    with tempfile.TemporaryDirectory() as folder:
        if text is None:
            text = Path(folder, "text.txt")
            text.write_text(builtin_text(), encoding="utf-8")
        budget = {"steps": 5} if quick else {"minutes": minutes}
        model, draft = Path(folder, "model"), Path(folder, "draft")
        network = cr.train(text, model="transformer", tokenizer="char", out=model, **budget, **SHAPE)  # type: ignore[arg-type]
        yield network, cr.train(text, model="ngram", tokenizer="char", out=draft, order=6)


def plain_tokens(run: cr.Run, choice: Callable[[], Chooser], length: int) -> list[int]:
    """What the run writes after each prompt without a draft."""
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
    """What it writes with one, and how the draft fared."""
    written: list[int] = []
    told = DraftStatistics()
    for prompt in PROMPTS:
        prompt_1T = torch.tensor([[run.tokenizer.eos, *run.tokenizer.encode_block(prompt).tolist()]])
        with threads(1), torch.inference_mode():
            found, one = generate_with_drafts(
                run.model, run.model.start(1), prompt_1T, drafter(), None, length, choice()
            )
        written += found
        told.add(one)
    return written, told


def choices() -> dict[str, Callable[[], Chooser]]:
    """How tokens are chosen."""
    return {
        "greedy": Greedy,
        "temperature 1": lambda: Sample(generator=torch.Generator().manual_seed(SEED)),
    }


def drafters(run: cr.Run, draft: cr.Run) -> dict[str, Callable[[], Drafter]]:
    """Where drafts come from."""
    return {
        f"--draft {draft.config.model.name}": open_draft(run, draft).for_text,
        f"{draft.config.model.name} alone": lambda: StepperDrafter(draft.model, draft.model.start(1)),
        "--draft lookup": LookupDrafter,
    }


def measure(run: cr.Run, draft: cr.Run, length: int, repeats: int) -> list[Figure]:
    """One figure for each way of choosing and each draft; the first draft, greedy, has the bar."""
    figures = []
    for way, choice in choices().items():
        expected, told = plain_tokens(run, choice, length), {}
        contestants: dict[str, Callable[[], object]] = {"plain": partial(plain_tokens, run, choice, length)}
        for name, drafter in drafters(run, draft).items():
            found, told[name] = drafted_tokens(run, choice, length, drafter)
            if found != expected:
                raise SystemExit(f"with {name} the text is another ({way})")
            contestants[name] = partial(drafted_tokens, run, choice, length, drafter)
        times = alternate(contestants, repeats)
        for name, one in told.items():
            figures.append(
                Figure(
                    f"{way}, {name}",
                    speed(times, name, len(expected)),
                    "tokens/s",
                    speed(times, "plain", len(expected)),
                    speed_up(times, name, "plain"),
                    at_least=None if figures else 1.3,
                    note=f"the same texts, {one.tokens_per_pass:.2f} tokens a pass, {one.acceptance:.0%} accepted",
                )
            )
    return figures


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--text", type=Path, help="what to train on (default: the built-in text)")
    parser.add_argument("--minutes", type=float, default=4, help="of training the Transformer (default: %(default)s)")
    parser.add_argument("--runs", type=Path, nargs=2, metavar=("RUN", "DRAFT"), help="runs that are there")
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
        peer="the same run without a draft",
        tokens=length * len(PROMPTS),
        run=repr(run),
        draft=repr(draft),
    )


if __name__ == "__main__":
    main()
