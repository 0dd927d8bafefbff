"""Generation speed of a hybrid language model in its modes, against its own mode ar, at batch 1.

    hybrid_modes.py --run RUN           uses an existing run of hybrid-lm, for example of the recipe shakespeare-hybrid
    hybrid_modes.py [--minutes 4]       trains a small one on the built-in text first

Five prompts are continued by 200 tokens each, greedily and by sampling. The text of mode draft must be that of ar,
token for token; nar generates another text, of lower quality.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness import Figure, alternate, arguments, begin, report, speed, speed_up

import chainrule as cr
from chainrule.base.devices import threads
from chainrule.inference.generate import Generated
from chainrule.text.samples.texts import english_text

PROMPTS = ("ROMEO:\n", "First Citizen:\n", "The king", "KING RICHARD III:\nNow", "What is")
CHOICES: dict[str, dict[str, Any]] = {"greedy": {}, "temperature 0.8": {"temperature": 0.8, "seed": 1}}
SHAPE: dict[str, Any] = {"embedding": 128, "hidden": 256, "block": 16, "context": 64}


@contextmanager
def trained_run(minutes: float, quick: bool) -> Iterator[cr.Run]:
    """Train a hybrid language model on the built-in text."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text(english_text(), encoding="utf-8")
        budget: dict[str, Any] = {"steps": 5} if quick else {"minutes": minutes}
        yield cr.train(text, model="hybrid-lm", tokenizer="char", out=Path(folder, "run"), **budget, **SHAPE)


def texts(run: Any, mode: str, length: int, choice: dict[str, Any]) -> list[Generated]:
    """The continuation of each prompt in a mode."""
    with threads(1):
        return [
            run.generate(prompt, max_new_tokens=length, stop_at_eos=False, mode=mode, **choice)[0] for prompt in PROMPTS
        ]


def measure(run: Any, length: int, repeats: int) -> list[Figure]:
    """One figure per mode and way of choosing."""
    figures = []
    for way, choice in CHOICES.items():
        made = {mode: texts(run, mode, length, choice) for mode in ("ar", "draft", "nar")}
        if [one.text for one in made["draft"]] != [one.text for one in made["ar"]]:
            raise SystemExit(f"{way}: the text of mode draft differs from that of ar")
        contestants: dict[str, Callable[[], object]] = {
            mode: partial(texts, run, mode, length, choice) for mode in made
        }
        times, tokens = alternate(contestants, repeats), length * len(PROMPTS)
        for mode, target in (("nar", 2.0), ("draft", None)):
            passes = sum(one.drafted.passes for one in made[mode] if one.drafted is not None)
            figures.append(
                Figure(
                    f"{way}, {mode}",
                    speed(times, mode, tokens),
                    "tokens/s",
                    speed(times, "ar", tokens),
                    speed_up(times, mode, "ar"),
                    at_least=target,
                    note=f"{tokens / passes:.2f} tokens per pass" + (", same texts" if mode == "draft" else ""),
                )
            )
    return figures


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--run", type=Path, help="existing run of hybrid-lm")
    parser.add_argument("--minutes", type=float, default=4, help="training time (default: %(default)s)")
    options = begin(parser)
    length = 32 if options.quick else 200
    if options.run:
        figures = measure(run := cr.load(options.run, device="cpu"), length, options.repeats)
    else:
        with trained_run(options.minutes, options.quick) as run:
            figures = measure(run, length, options.repeats)
    report(figures, options, peer="mode ar of the same run", tokens=length * len(PROMPTS), run=repr(run))


if __name__ == "__main__":
    main()
