"""Speed of the hybrids in their modes, against their own greedy mode ar, at batch 1.

    hybrid_modes.py --run RUN                   a run of hybrid-lm, for example of the recipe shakespeare-hybrid
    hybrid_modes.py --run RUN --lines FILE      a run of the translator hybrid, and the lines to translate
    hybrid_modes.py [--minutes 1]               trains small ones first: hybrid-lm on the built-in text, and hybrid on
                                                built-in phrases, by lengths and with slots

A language model continues five prompts by 200 tokens each, greedily and by sampling. A translator translates lines one
by one. The text of mode draft must be that of ar, token for token; nar gives another text, of lower quality.
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
from chainrule.text.samples.phrases import write_phrase_pairs
from chainrule.text.samples.texts import english_text

PROMPTS = ("ROMEO:\n", "First Citizen:\n", "The king", "KING RICHARD III:\nNow", "What is")
CHOICES: dict[str, dict[str, Any]] = {"greedy": {}, "temperature 0.8": {"temperature": 0.8, "seed": 1}}
SHAPE: dict[str, Any] = {"embedding": 128, "hidden": 256, "block": 16, "context": 64}
TRANSLATOR: dict[str, Any] = {"embedding": 192, "hidden": 256, "nar_layers": 2, "cell": "lstm"}
BRANCHES: dict[str, dict[str, Any]] = {"lengths": {}, "slots": {"nar": "ctc", "gamma": 0.0}}
TARGETS = (("nar", 5.0), ("draft", 1.5))
LINES = 40


@contextmanager
def trained_model(budget: dict[str, Any]) -> Iterator[cr.Run]:
    """Train a hybrid language model on the built-in text."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text(english_text(), encoding="utf-8")
        yield cr.train(text, model="hybrid-lm", tokenizer="char", out=Path(folder, "run"), **budget, **SHAPE)


@contextmanager
def trained_translator(branch: str, budget: dict[str, Any]) -> Iterator[tuple[cr.Run, list[str]]]:
    """Train a hybrid translator on built-in phrases; the lines are those of its test part."""
    with tempfile.TemporaryDirectory() as folder:
        files = write_phrase_pairs(Path(folder), "en", "de", {"train": 8000, "valid": 100, "test": LINES})
        shape = {**TRANSLATOR, **BRANCHES[branch]}
        run = cr.train(
            *files["train"], valid=files["valid"], model="hybrid", out=Path(folder, "run"), **budget, **shape
        )
        yield run, files["test"][0].read_text(encoding="utf-8").splitlines()


def texts(run: Any, mode: str, length: int, choice: dict[str, Any]) -> list[Generated]:
    """The continuation of each prompt in a mode."""
    with threads(1):
        return [
            run.generate(prompt, max_new_tokens=length, stop_at_eos=False, mode=mode, **choice)[0] for prompt in PROMPTS
        ]


def translations(run: Any, mode: str, lines: list[str]) -> list[str]:
    """The translation of each line in a mode, one line at a time."""
    with threads(1):
        return [run.translate(line, mode=mode, num_beams=1) for line in lines]


def generation(run: Any, length: int, repeats: int) -> list[Figure]:
    """One figure per mode and way of choosing of a language model."""
    figures = []
    for way, choice in CHOICES.items():
        made = {mode: texts(run, mode, length, choice) for mode in ("ar", "draft", "nar")}
        check_draft(way, [one.text for one in made["draft"]], [one.text for one in made["ar"]])
        contestants: dict[str, Callable[[], object]] = {
            mode: partial(texts, run, mode, length, choice) for mode in made
        }
        times, tokens = alternate(contestants, repeats), length * len(PROMPTS)
        for mode, target in TARGETS:
            passes = sum(one.drafted.passes for one in made[mode] if one.drafted is not None)
            note = f"{tokens / passes:.2f} tokens per pass" + (", same texts" if mode == "draft" else "")
            figures.append(figure(f"{way}, {mode}", times, mode, tokens, "tokens/s", target, note))
    return figures


def translation(name: str, run: Any, lines: list[str], repeats: int) -> list[Figure]:
    """One figure per mode of a translator."""
    made = {mode: translations(run, mode, lines) for mode in ("ar", "draft", "nar")}
    check_draft(name, made["draft"], made["ar"])
    contestants: dict[str, Callable[[], object]] = {mode: partial(translations, run, mode, lines) for mode in made}
    times = alternate(contestants, repeats)
    same = sum(one == other for one, other in zip(made["nar"], made["ar"], strict=True))
    notes = {"nar": f"{same} of {len(lines)} lines as in ar", "draft": "same texts"}
    return [
        figure(f"translator by {name}, {mode}", times, mode, len(lines), "lines/s", target, notes[mode])
        for mode, target in TARGETS
    ]


def figure(
    name: str, times: dict[str, list[float]], mode: str, count: int, unit: str, target: float, note: str
) -> Figure:
    """The speed of a mode beside that of ar."""
    ratio = speed_up(times, mode, "ar")
    return Figure(name, speed(times, mode, count), unit, speed(times, "ar", count), ratio, at_least=target, note=note)


def check_draft(name: str, drafted: list[str], plain: list[str]) -> None:
    if drafted != plain:
        raise SystemExit(f"{name}: the text of mode draft differs from that of ar")


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--run", type=Path, help="existing run of hybrid-lm or hybrid")
    parser.add_argument("--lines", type=Path, help="lines to translate, for a run of hybrid")
    parser.add_argument("--minutes", type=float, default=1, help="training time of each model (default: %(default)s)")
    options = begin(parser)
    length, figures = 32 if options.quick else 200, list[Figure]()
    budget: dict[str, Any] = {"steps": 5} if options.quick else {"minutes": options.minutes}
    if options.run:
        run = cr.load(options.run, device="cpu")
        if options.lines:
            lines = options.lines.read_text(encoding="utf-8").splitlines()[:LINES]
            branch = "slots" if run.model.config.nar == "ctc" else "lengths"
            figures = translation(branch, run, lines, options.repeats)
        else:
            figures = generation(run, length, options.repeats)
    else:
        with trained_model(budget) as run:
            figures = generation(run, length, options.repeats)
        for branch in BRANCHES:
            with trained_translator(branch, budget) as (run, lines):
                figures += translation(branch, run, lines, options.repeats)
    report(figures, options, peer="greedy mode ar of the same run", tokens=length * len(PROMPTS))


if __name__ == "__main__":
    main()
