"""The command line: one thin file a verb, gathered here.

Torch is imported inside the verbs, so --help answers at once.
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
    help="Train, measure and use models of sequences: one contract, one measure (bits per byte), one decoder.",
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
    """Run a verb; a mistake becomes one line and exit code 2, Ctrl-C exit code 130."""
    try:
        app(_repeat(sys.argv[1:], "--prune"))
    except ChainruleError as error:
        print(f"chainrule: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("chainrule: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        sys.exit(0)


def _repeat(arguments: list[str], option: str) -> list[str]:
    """`--prune 0 0 1` as `--prune 0 --prune 0 --prune 1`, the only way the parser takes a list."""
    spread: list[str] = []
    following = False
    for argument in arguments:
        if following and argument.isdecimal() and spread[-1] != option:
            spread.append(option)
        following = argument == option or (following and argument.isdecimal())
        spread.append(argument)
    return spread


if __name__ == "__main__":
    main()
