"""The command line: registers the verbs, each of which has its own module.

Torch is imported inside the verbs, so that --help answers quickly.
"""

from __future__ import annotations

import sys

import typer

from chainrule.cli import (
    classify,
    compare,
    compress,
    demo,
    distill,
    embed,
    evaluate,
    exchange,
    fill,
    generate,
    info,
    mix,
    neighbours,
    score,
    tag,
    tokenize,
    train,
    translate,
)
from chainrule.errors import ChainruleError

app = typer.Typer(
    name="chainrule",
    help="Train, evaluate and use sequence models: language models, translators, classifiers, taggers, word vectors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("score")(score.score)
app.command("generate")(generate.generate)
app.command("fill")(fill.fill)
app.command("translate")(translate.translate)
app.command("distill")(distill.distill)
app.command("embed")(embed.embed)
app.command("neighbours")(neighbours.neighbours)
app.command("classify")(classify.classify)
app.command("tag")(tag.tag)
app.command("compare")(compare.compare)
app.command("mix")(mix.mix)
app.command("compress")(compress.compress)
app.command("decompress")(compress.decompress)
app.command("export")(exchange.export)
app.command("import")(exchange.import_)
app.command("models")(info.models)
app.command("info")(info.info)
app.command("tokenize")(tokenize.tokenize)


def main() -> None:
    """Run a verb. A user's mistake prints one line and exits with code 2, Ctrl-C with code 130."""
    try:
        app(_repeat(sys.argv[1:], "--prune"))
    except ChainruleError as error:
        print(f"chainrule: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as exit_:
        reason = _exit_reason(exit_)
        if isinstance(reason, BrokenPipeError):  # the reader of the output, for example `head`, has read enough
            sys.exit(0)
        if isinstance(reason, KeyboardInterrupt):
            print("chainrule: interrupted", file=sys.stderr)
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
