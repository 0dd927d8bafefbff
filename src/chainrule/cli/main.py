"""The command line: registers the verbs, each of which has its own module.

The module of a verb is imported when the verb is called or described, and torch inside it, so that all answer quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from chainrule.cli.failures import BUG, describe, open_missing_streams, print_failure, report_bug
from chainrule.cli.quick_start import end_without_collecting, skip_optional_imports
from chainrule.cli.threads import with_threads
from chainrule.cli.training_command import TrainingCommand

VERBS: dict[str, dict[str, str]] = {
    "Train and measure": {
        "demo": "demo.demo",
        "train": "train.train",
        "eval": "evaluate.evaluate",
        "score": "score.score",
        "rescore": "rescore.rescore",
        "measure": "measure.measure",
        "compare": "compare.compare",
        "mix": "mix.mix",
        "tune": "tune.tune",
        "report": "report.report",
    },
    "Use": {
        "generate": "generate.generate",
        "translate": "translate.translate",
        "classify": "classify.classify",
        "tag": "tag.tag",
        "fill": "fill.fill",
        "embed": "embed.embed",
        "neighbours": "neighbours.neighbours",
        "compress": "compress.compress",
        "decompress": "compress.decompress",
        "serve": "serve.serve",
    },
    "Exchange": {
        "export": "exchange.export",
        "import": "exchange.import_",
        "pack": "pack.pack",
        "unpack": "pack.unpack",
        "distill": "distill.distill",
        "count": "count.count",
        "merge": "count.merge",
    },
    "Inspect": {
        "models": "info.models",
        "explain": "info.explain",
        "info": "info.info",
        "tokenize": "tokenize.tokenize",
    },
}
"""The module and the function of each verb by group, in the order of `chainrule --help`."""

TRAINING_VERBS = ("train", "compare")
"""The verbs that take any option of the configuration with --set."""

LIGHT_VERBS = ("measure", "pack", "unpack", "models", "explain", "info", "tokenize")
"""The verbs without --threads: they compute little."""


class VerbGroup(TyperGroup):
    """Lists the verbs by group, with their whole summaries."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        for title, verbs in VERBS.items():
            with formatter.section(title):
                rows = [(name.ljust(width), _summary(_function(place))) for name, place in verbs.items()]
                formatter.write_dl(rows)


def _function(place: str) -> Callable[..., None]:
    """The function of a verb."""
    module, _, name = place.partition(".")
    found: Callable[..., None] = getattr(import_module(f"chainrule.cli.{module}"), name)
    return found


def _summary(function: Callable[..., None]) -> str:
    return (function.__doc__ or "").partition("\n")[0]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"chainrule {version('chainrule')}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train, evaluate and use sequence models: language models, translators, classifiers, taggers, word vectors."""


def _make_app(only: str | None = None) -> typer.Typer:
    """The command line with all verbs, or with one of them, which starts more quickly."""
    made = typer.Typer(
        name="chainrule",
        cls=VerbGroup,
        help=options.__doc__,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    made.callback()(options)
    for verbs in VERBS.values():
        for name, place in verbs.items():
            if only is None or name == only:
                function = _function(place)
                verb = function if name in LIGHT_VERBS else with_threads(function)
                made.command(name, cls=TrainingCommand if name in TRAINING_VERBS else None)(verb)
    return made


@cache
def _whole_app() -> typer.Typer:
    return _make_app()


if TYPE_CHECKING:
    app: typer.Typer
    """The command line with all verbs."""
else:

    def __getattr__(name: str) -> Any:
        """`app`, which imports the modules of all verbs."""
        if name != "app":
            raise AttributeError(f"module {__name__} has no attribute {name}")
        return _whole_app()


def main() -> None:
    """Run a verb. An error prints one line and exits with a code of `failures`, Ctrl-C with code 130."""
    open_missing_streams()
    skip_optional_imports()
    end_without_collecting()
    try:
        _run()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        message, code = describe(error) or (report_bug(error), BUG)
        print_failure(message)
        sys.exit(code)


def _run() -> None:
    try:
        arguments = _repeat(sys.argv[1:], "--prune")
        known = any(arguments[0] in verbs for verbs in VERBS.values()) if arguments else False
        (_make_app(arguments[0]) if known else _whole_app())(arguments)
    except SystemExit as exit_:
        reason = _exit_reason(exit_)
        if isinstance(reason, BrokenPipeError):  # the reader of the output, for example `head`, has read enough
            sys.exit(0)
        if isinstance(reason, KeyboardInterrupt):
            print("chainrule: interrupted", file=sys.stderr)
        sys.stdout.flush()  # a full disk is reported here, not when Python ends
        raise


def _exit_reason(exit_: SystemExit) -> BaseException | None:
    """The exception that typer turned into an exit."""
    context = exit_.__context__
    return context.__cause__ or context if context else None


def _repeat(arguments: list[str], option: str) -> list[str]:
    """Rewrite `--prune 0 0 1` as `--prune 0 --prune 0 --prune 1`, the only form of a list that typer parses."""
    repeated: list[str] = []
    following = False
    for argument in arguments:
        if following and argument.isdecimal() and repeated[-1] != option:
            repeated.append(option)
        following = argument == option or (following and argument.isdecimal())
        repeated.append(argument)
    return repeated


if __name__ == "__main__":
    main()
