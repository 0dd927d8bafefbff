"""Several models on one text at one budget, in one table.

Each model is an ordinary run in a folder of its own, so a comparison that was broken off goes on, and a finished model
is never trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chainrule.api import Paths, Run, text_name, train
from chainrule.config import merge
from chainrule.errors import RunError
from chainrule.fitting import Listener


@dataclass(frozen=True)
class Row:
    """One line of a leaderboard."""

    model: str
    parameters: int
    train_seconds: float
    peak_memory: int  # bytes
    tokens: int
    perplexity: float
    bits_per_byte: float
    train_tokens_per_second: float
    generate_tokens_per_second: float
    signature: str
    protocol: str
    run: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    *data: str | Path,
    models: Sequence[str],
    test: Paths = (),
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    per_model: Mapping[str, Mapping[str, Any]] | None = None,
    listener: Listener | None = None,
    done: Callable[[Row], None] = lambda row: None,
    **options: Any,
) -> list[Row]:
    """Train each model with the same options and measure it on `test` (else on the validation text), best first.

    `options` are those of `train`; `per_model` adds settings for some models. A name may be MODEL or MODEL:OUTPUT.
    """
    listener = listener or Listener()
    folder = Path(out) if out else Path("runs") / f"compare-{text_name(data[0])}"
    rows = []
    for name in models:
        model, _, output = name.partition(":")
        extra = merge(settings or {}, (per_model or {}).get(name, {}))
        listener.note(f"{name}:")
        run = train(
            *data,
            model=model,
            output=output or None,
            out=folder / name.replace(":", "-"),
            settings=extra,
            listener=listener,
            **options,
        )
        rows.append(measure(name, run, test or options.get("valid", ())))
        done(rows[-1])
    return sorted(rows, key=lambda row: row.bits_per_byte)


def measure(name: str, run: Run, test: Paths) -> Row:
    """A finished run's line of the leaderboard."""
    if not run.result:
        raise RunError(f"{run.folder.path} was stopped before it was finished; run the same command again to go on")
    measured = run.evaluate(test) if test else run.evaluate_held_out()
    return Row(
        model=name,
        parameters=run.parameters,
        train_seconds=run.result["seconds"],
        peak_memory=run.result["peak_memory"],
        tokens=measured.tokens,
        perplexity=measured.perplexity,
        bits_per_byte=measured.bits_per_byte,
        train_tokens_per_second=run.result["tokens_per_second"],
        generate_tokens_per_second=run.generation_speed(),
        signature=measured.signature,
        protocol=measured.protocol,
        run=str(run.folder.path),
    )
