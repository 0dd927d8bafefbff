"""chainrule serve"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.common import Precision, print_note

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders that contain runs.")]
Memory = Annotated[
    float | None,
    typer.Option(help="Gigabytes of runs to keep loaded; idle runs are unloaded for others (default: no limit)."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with one API key per line; $CHAINRULE_API_KEYS has further ones."),
]
Languages = Annotated[
    list[str] | None,
    typer.Option(metavar="RUN=SOURCE-TARGET", help="Languages of a translator, for example wmt=en-de; repeatable."),
]
Cors = Annotated[list[str] | None, typer.Option(help="Origin of web pages that may send requests; repeatable.")]
Threads = Annotated[
    int, typer.Option(min=1, max=1 << 10, help="CPU cores that divide the texts of a step (one more handles requests).")
]
Drain = Annotated[float, typer.Option(min=0, help="Seconds to finish requests after SIGTERM.")]


def serve(
    runs: Runs,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is every address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 chooses a free one.")] = 8000,
    api_key_file: KeyFile = None,
    memory: Memory = None,
    load: Annotated[bool, typer.Option("--load", help="Load all runs at once instead of when first used.")] = False,
    languages: Languages = None,
    max_body: Annotated[int, typer.Option(min=1, help="Maximum bytes of a request.")] = 10_000_000,
    max_body_seconds: Annotated[
        float, typer.Option(min=0.01, help="Maximum time to send a request, in seconds.")
    ] = 30.0,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of tokens of a prompt or line.")
    ] = 32_768,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum of max_tokens of a request.")] = 4096,
    max_n: Annotated[int, typer.Option(min=1, help="Maximum of n, best_of and alternatives.")] = 16,
    max_beams: Annotated[int, typer.Option(min=1, help="Maximum of num_beams.")] = 16,
    max_logprobs: Annotated[int, typer.Option(min=0, help="Maximum of logprobs.")] = 20,
    max_seconds: Annotated[float, typer.Option(min=0.01, help="Maximum time of a request in seconds.")] = 300.0,
    rows: Annotated[int, typer.Option(min=1, help="Texts generated at the same time.")] = 32,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more get status 429.")] = 64,
    queue_tokens: Annotated[int, typer.Option(min=1, help="Tokens of requests that may wait.")] = 1_000_000,
    cors: Cors = None,
    drain: Drain = 30.0,
    precision: Precision = None,
    threads: Threads = 1,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts to the log.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not log requests.")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page over the runs in a browser.")] = False,
) -> None:
    """Serve runs over HTTP: a page to look at them, OpenAI's API, translation, labels, vectors and scores.

    The log on standard error has one line of JSON per request. SIGTERM and Ctrl-C finish what is running.
    """
    check_installed()
    from chainrule.server.app import serve as make_app
    from chainrule.server.auth import read_keys
    from chainrule.server.limits import Limits
    from chainrule.server.process import run_server

    limits = Limits(
        body=max_body,
        body_seconds=max_body_seconds,
        prompt_tokens=max_prompt_tokens,
        tokens=max_tokens,
        n=max_n,
        beams=max_beams,
        logprobs=max_logprobs,
        seconds=max_seconds,
        rows=rows,
        queue=queue,
        queue_tokens=queue_tokens,
    )
    app = make_app(
        runs,
        limits=limits,
        api_keys=read_keys(api_key_file),
        memory=None if memory is None else _bytes(memory),
        languages=dict(map(_pair, languages or [])),
        cors=cors or (),
        log=not quiet,
        precision=precision,
        threads=threads,
        log_prompts=log_prompts,
    )

    def started(address: str) -> None:
        names = ", ".join(app.state.server.library.entries)
        print_note(f"serving {names} at {address}")
        if open_page:
            open_browser(address)

    run_server(app, host, port, drain=drain, load=load, page=open_page, started=started)


def check_installed() -> None:
    """Refuse to serve where the packages for it are missing."""
    from chainrule.errors import ConfigError

    try:
        import chainrule.server.app  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"serve needs {error.name}; install it: pip install 'chainrule[serve]'") from None


def serve_page(runs: list[Path]) -> None:
    """Serve runs at a free port of this computer, and open the page over them, until Ctrl-C."""
    check_installed()
    from chainrule.server.app import serve as make_app
    from chainrule.server.process import run_server

    def started(address: str) -> None:
        print_note(f"the page over these runs is at {address}; Ctrl-C ends it")
        open_browser(address)

    run_server(make_app(runs), "127.0.0.1", 0, drain=1.0, load=False, page=True, started=started)


def open_browser(address: str) -> None:
    """Open an address in the user's browser, without waiting for it; where there is none, the address is printed."""
    import threading
    import webbrowser

    def open_address() -> None:
        if not webbrowser.open(address):
            print_note(f"no browser was found; open {address}")

    threading.Thread(target=open_address, daemon=True).start()


def _bytes(gigabytes: float) -> int:
    """A bound of the memory in bytes."""
    from chainrule.errors import ConfigError

    if not 0 < gigabytes < 1e9:
        raise ConfigError(f"--memory is {gigabytes:g}; expected a number of gigabytes above 0")
    return int(gigabytes * 1e9)


def _pair(text: str) -> tuple[str, tuple[str, str]]:
    """wmt=en-de -> the name of the run, and its languages."""
    from chainrule.errors import ConfigError

    name, _, pair = text.rpartition("=")
    source, _, target = pair.partition("-")
    if not (name and source and target):
        raise ConfigError(f"--languages is {text!r}; expected RUN=SOURCE-TARGET, for example wmt=en-de")
    return name, (source, target)
