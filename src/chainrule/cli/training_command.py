"""A command that trains: options of the configuration that are given like options of the command get a suggestion."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from typer.core import TyperCommand


class TrainingCommand(TyperCommand):
    """Suggests --set model.hidden=100 for --hidden 100."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {option for param in self.get_params(ctx) for option in (*param.opts, *param.secondary_opts)}
        for option, value in _unknown(args, known):
            if place := _place_of(option, args):
                ctx.fail(f"No such option: {option}; did you mean --set {place}={value}?")
        return super().parse_args(ctx, args)


def _unknown(args: list[str], known: set[str]) -> Iterator[tuple[str, str]]:
    """The long options that the command does not have, with their values."""
    for argument, following in zip(args, [*args[1:], ""], strict=True):
        if argument == "--":
            return
        option, equals, value = argument.partition("=")
        if option.startswith("--") and option not in known:
            yield option, value if equals else "true" if following.startswith("-") or not following else following


def _place_of(option: str, args: list[str]) -> str | None:
    """The option of the configuration with this name."""
    from chainrule.training.request import place_of

    model = next((value for name, value in pairwise(args) if name == "--model"), "lstm")
    return place_of(option[2:].replace("-", "_"), model)
