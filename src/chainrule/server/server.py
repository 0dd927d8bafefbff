"""What the routes share: the runs, the engine, the limits, the keys, and how a request becomes an answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from chainrule.errors import ChainruleError, ConfigError
from chainrule.runs.base import Run
from chainrule.server.auth import ApiKeys
from chainrule.server.completion_request import CompletionRequest
from chainrule.server.completions import Completion
from chainrule.server.engine import Engine, Steps, Work
from chainrule.server.errors import shutting_down
from chainrule.server.library import Entry, Library, LoadedRun, import_models
from chainrule.server.limits import Limits
from chainrule.server.metrics import Metrics
from chainrule.server.requests import JsonResponse
from chainrule.server.sse import PING_SECONDS, EventStream, unless_disconnected
from chainrule.server.translation import Languages

SHORT = 4096
"""Characters or ids of a prompt that are read at once; longer ones are tokenised beside other requests."""

END_SECONDS = 5.0
"""Seconds that the engine has to end its step."""

PAGE_SECONDS = 5.0
"""Seconds that a browser has to show the page."""

T = TypeVar("T")


async def tokenise(loaded: LoadedRun, size: int, call: Callable[[], T]) -> T:
    """The result of a call that uses the tokeniser of a run, which one request does at a time.

    `size` is the characters or ids that are read; many are read on another thread.
    """
    async with loaded.lock:
        return call() if size <= SHORT else await asyncio.to_thread(call)


class Answerable(Protocol):
    """A request whose answer is computed by one generator."""

    def check(self, limits: Limits) -> None: ...

    def long_texts(self, limits: Limits) -> list[str]: ...

    def check_tokens(self, run: Run, limits: Limits) -> None: ...

    def answer(self, loaded: LoadedRun, limits: Limits) -> Steps: ...


class Server:
    """One server."""

    def __init__(
        self,
        runs: Iterable[str | Path],
        *,
        limits: Limits | None = None,
        keys: ApiKeys | None = None,
        memory: int | None = None,
        languages: Mapping[str, tuple[str, str]] | None = None,
        device: str = "auto",
        precision: str | None = None,
        threads: int = 1,
    ) -> None:
        self.limits, self.keys, self.metrics = limits or Limits(), keys or ApiKeys(), Metrics()
        self.library = Library(runs, memory=memory, device=device, precision=precision)
        self.engine = Engine(self.limits, self.metrics, threads)
        self.languages = Languages(dict(languages or {}))
        self.loading = self.draining = self.log_prompts = False
        self._guard, self._blocks = threading.Lock(), 0  # number of `running` blocks
        self.answering = 0  # requests that were accepted and have no whole answer yet
        self.asked = asyncio.Event()  # whether anything was asked for but the files of the page
        self._check_languages(languages or {})
        self.metrics.loaded.set_function(lambda: self.library.loaded)

    def _check_languages(self, names: Iterable[str]) -> None:
        """Refuse languages of what is no translator of this server."""
        known = [entry.name for entry in self.translators]
        for name in names:
            if name not in known:
                there = f"its translators are {', '.join(known)}" if known else "it has none, so leave --languages out"
                raise ConfigError(f"--languages has {name!r}, which is no translator of this server; {there}")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Accept requests inside the block; at its end, what is left gets an error and the engine's thread ends.

        With several event loops, each has a block, and the last one's end counts.
        """
        with self._guard:
            self._blocks += 1
            self.engine.start()
        try:
            yield
        finally:
            with self._guard:
                self._blocks -= 1
                if last := not self._blocks:
                    self.engine.stop()
            if last:
                await asyncio.to_thread(self.engine.join, END_SECONDS)

    @property
    def translators(self) -> list[Entry]:
        """The runs that translate."""
        return [one for one in self.library.entries.values() if one.task == "translation"]

    async def prepare(self, load: bool, page: bool = False) -> None:
        """Import what the models compute with, and load every run if asked to; meanwhile the server is not healthy.

        With `page` a browser is about to show the page: imports, which other threads have to wait for, begin when it
        asks for the first result, or after PAGE_SECONDS.
        """
        self.loading = True
        try:
            if page:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.asked.wait(), PAGE_SECONDS)
            await asyncio.to_thread(self._import_models)
            for name in self.library.entries if load else ():
                async with self.library.use(name):
                    pass
        finally:
            self.loading = False

    def _import_models(self) -> None:
        for name in {entry.model for entry in self.library.entries.values()}:
            with contextlib.suppress(ChainruleError):  # the requests that use it get the error
                import_models([name])

    async def compute(self, request: Request, name: str | None, wanted: Answerable) -> Any:
        """The answer of a request that is one call of a verb."""
        wanted.check(self.limits)
        async with self.library.use(name) as loaded:
            self.note(request, loaded)
            if size := sum(map(len, wanted.long_texts(self.limits))):
                await tokenise(loaded, size, lambda: wanted.check_tokens(loaded.run, self.limits))
            work = Work(lambda work: wanted.answer(loaded, self.limits))
            self.engine.submit(work)
            return await unless_disconnected(request, work.result(), lambda: self.engine.cancel(work))

    async def complete(self, request: Request, wanted: CompletionRequest) -> Response:
        """The answer of a completion: whole, or in parts."""
        stack = AsyncExitStack()
        try:
            completion, work = await self.begin(request, wanted, stack)
        except BaseException:
            await stack.aclose()
            raise
        cancel = self._cancel(work)
        if wanted.stream:
            return EventStream(self._events(completion, work, wanted), cancel, stack.aclose)
        async with stack:
            answer = await unless_disconnected(request, work.result(), cancel)
        self.count(completion, work)
        return JsonResponse(answer)

    async def begin(
        self, request: Request, wanted: CompletionRequest, stack: AsyncExitStack
    ) -> tuple[Completion, Work]:
        """Load the runs of a completion, check it and queue it."""
        loaded = await stack.enter_async_context(self.library.use(wanted.model))
        self.note(request, loaded)
        draft = None
        if wanted.draft not in (None, "lookup"):
            draft = await stack.enter_async_context(self.library.use(wanted.draft))
        completion = await tokenise(loaded, wanted.size, lambda: Completion(loaded, wanted, self.limits, draft))
        work = completion.work()
        self.engine.submit(work)
        return completion, work

    def _cancel(self, work: Work) -> Callable[[], None]:
        return lambda: self.engine.cancel(work)

    async def _events(self, completion: Completion, work: Work, wanted: CompletionRequest) -> AsyncIterator[Any]:
        """The parts of a streamed completion, in lists; an empty one after a time without any; at last the usage."""
        async for parts in work.parts(PING_SECONDS):
            yield parts
        self.count(completion, work)
        if wanted.stream_options is not None and wanted.stream_options.include_usage:
            yield [completion.chunk([]) | {"usage": completion.usage}]

    def note(self, request: Request, loaded: LoadedRun) -> None:
        """Record the run of a request for the log."""
        request.state.model = loaded.name

    def count(self, completion: Completion, work: Work) -> None:
        """Record the tokens of a finished completion."""
        name, metrics = completion.loaded.name, self.metrics
        metrics.prompt_tokens.labels(name).inc(completion.prompt_tokens)
        metrics.generation_tokens.labels(name).inc(completion.completion_tokens)
        metrics.prompt_size.observe(completion.prompt_tokens)
        metrics.text_size.observe(completion.completion_tokens)
        for reason in completion.finished:
            metrics.finished.labels(reason).inc()
        if completion.first_token is not None:
            metrics.first_token.observe(completion.first_token - work.arrived)

    def check_accepting(self) -> None:
        """Refuse requests while the server shuts down."""
        if self.draining:
            raise shutting_down()
