"""A trained model with its tokeniser and its folder: what `load` gives for a language model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from chainrule.base.devices import choose_device, physical_cores, threads
from chainrule.base.modes import evaluating
from chainrule.base.parallel import ordered_map
from chainrule.base.progress import Progress
from chainrule.checkpoint.folder import RunFolder, adjust, count_parameters, load_model
from chainrule.config import RunConfig
from chainrule.data.store import TokenStore, open_store
from chainrule.decoding import Chooser, Drafted, Greedy, Sample, beam_search, draft_search, generate, stream
from chainrule.decoding.draft import DRAFT_TOKENS
from chainrule.decoding.stop_strings import Stops
from chainrule.errors import ConfigError
from chainrule.evaluation.speed import generation_speed
from chainrule.evaluation.text import Evaluation, evaluate
from chainrule.inference.compress import Compressed, compress, decompress
from chainrule.inference.drafts import Draft, check_alone, open_draft
from chainrule.registry import MODELS
from chainrule.tasks.language_model import refuse_pairs, training_texts
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.base import Ids

if TYPE_CHECKING:
    from chainrule.inference.embed import Neighbour, Pooling, WordTable
    from chainrule.inference.few_shot import Choice

Paths = str | Path | Sequence[str | Path]
BATCH_TOKENS = 8192
"""Tokens scored together when lines are scored one by one."""


@dataclass(frozen=True)
class LineScore:
    """How probable a model finds one line, its `<eos>` included."""

    log_prob: float  # nats
    tokens: int
    pieces: list[str]
    log_probs: list[float]


@dataclass(frozen=True)
class Generated:
    """A text that a model wrote, with its log-probability in nats where the search knows it."""

    text: str
    tokens: int
    log_prob: float | None = None
    drafted: Drafted | None = None  # how the draft fared, where there was one


class Run:
    """A trained model with its tokeniser and its folder."""

    counted: ClassVar[str] = "tokens"  # what the progress of a measurement counts

    def __init__(self, path: str | Path, *, device: str = "auto") -> None:
        self.folder = RunFolder(path)
        self.config: RunConfig = self.folder.read_config()
        self.device = choose_device(device)

    def __repr__(self) -> str:
        return f"Run({str(self.folder.path)!r}, model={self.config.model.name!r})"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.folder.read_tokenizer()

    @cached_property
    def model(self) -> Any:
        if torch.get_num_threads() != physical_cores():
            torch.set_num_threads(physical_cores())
        return load_model(self.folder, self.tokenizer).to(self.device)

    @property
    def leads(self) -> bool:
        """Whether this process speaks for the run; False in all but one of those that torchrun starts."""
        return int(os.environ.get("RANK", "0")) == 0

    @property
    def result(self) -> dict[str, Any]:
        """What the training came to; empty while it is unfinished."""
        return self.folder.read_result() or {}

    @property
    def parameters(self) -> int:
        return count_parameters(self.model)

    def adjust(self, **options: Any) -> None:
        """Set options of the model that need no training, such as gamma of `hybrid`; the folder stays as it is."""
        adjust(self.model, options)

    # Measuring

    def open(self, texts: Paths, *, field: str | None = None, progress: Progress | None = None) -> TokenStore:
        """A text as this run's tokens."""
        sources = [texts] if isinstance(texts, str | Path) else list(texts)
        return open_store(open_texts(sources, field=field or self.config.data.field), self.tokenizer, progress=progress)

    def evaluate(self, texts: Paths, *, field: str | None = None, progress: Progress | None = None) -> Evaluation:
        """Perplexity, bits per byte and the rest on a text, with protocol and signature."""
        refuse_pairs(path_strings(texts), self.config.model.name)
        return evaluate(self.model, self.open(texts, field=field), self.tokenizer, progress=progress)

    def evaluate_held_out(self) -> Evaluation:
        """The same on the validation text of the training: the one that was given, or the one that was held out."""
        return evaluate(self.model, self.open_held_out(), self.tokenizer)

    def validation(self) -> Evaluation:
        """What a training tells of its validation text when it has ended."""
        return self.evaluate_held_out()

    def open_held_out(self) -> TokenStore:
        """That text as this run's tokens."""
        _, valid = training_texts(self.config.data)
        return open_store(valid, self.tokenizer)

    def score(self, lines: Iterable[str]) -> Iterator[LineScore]:
        """log p of each line by itself, in the order given; lines are read and scored in groups."""
        for group in _groups(lines):
            yield from self._score_group(group)

    def score_text(
        self, texts: Paths, *, field: str | None = None, threads: int | None = None
    ) -> Iterator[tuple[list[float], list[int]]]:
        """log p and the number of tokens of each line of a text, in the order of the text, some lines at a time."""
        opened = open_texts(path_strings(texts), field=field or self.config.data.field)
        blocks = _whole_lines(opened.strings(any_bytes=self.tokenizer.any_bytes))
        if not hasattr(self.model, "score_lines"):
            for block in blocks:
                scored = list(self.score(block.removesuffix("\n").split("\n")))
                yield [one.log_prob for one in scored], [one.tokens for one in scored]
            return

        def encode(block: str) -> Ids:
            return self.tokenizer.encode_block(block if block.endswith("\n") else block + "\n")

        def score(tokens: Ids) -> tuple[list[float], list[int]]:
            nats_L, tokens_L = self.model.score_lines(tokens)
            return nats_L.tolist(), tokens_L.tolist()

        if self.tokenizer.concurrent:
            yield from ordered_map(lambda block: score(encode(block)), blocks, threads or physical_cores())
        else:
            yield from ordered_map(score, map(encode, blocks), threads or physical_cores())

    def _score_group(self, lines: list[str]) -> list[LineScore]:
        encoded = [[*self.tokenizer.encode(line), self.tokenizer.eos] for line in lines]
        order = sorted(range(len(lines)), key=lambda i: len(encoded[i]))
        scores: dict[int, LineScore] = {}
        while order:
            rows = max(1, min(len(order), BATCH_TOKENS // len(encoded[order[0]])))
            batch, order = order[:rows], order[rows:]
            for number, log_probs in zip(batch, self._log_probs([encoded[i] for i in batch]), strict=True):
                pieces = [self.tokenizer.piece(token) for token in encoded[number]]
                scores[number] = LineScore(sum(log_probs), len(log_probs), pieces, log_probs)
        return [scores[number] for number in range(len(lines))]

    def _log_probs(self, rows: list[list[int]]) -> list[list[float]]:
        """log p of rows of unequal length; what pads them comes after them and changes nothing."""
        longest = max(map(len, rows))
        tokens_BT = torch.full((len(rows), longest), self.tokenizer.eos)
        for number, row in enumerate(rows):
            tokens_BT[number, : len(row)] = torch.tensor(row)
        with evaluating(self.model):
            log_probs_BT = self.model.log_probs(tokens_BT.to(self.device)).cpu().double()
        return [log_probs_BT[number, : len(row)].tolist() for number, row in enumerate(rows)]

    def generation_speed(self, tokens: int = 200) -> float:
        """Tokens a second when one text is generated."""
        with threads(1):
            return generation_speed(self.model, eos=self.tokenizer.eos, tokens=tokens)

    # Generating

    def generate(
        self,
        prompt: str = "",
        *,
        max_new_tokens: int = 200,
        num_beams: int = 1,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        length_penalty: float = 1.0,
        num_return_sequences: int = 1,
        seed: int | None = None,
        stop_at_eos: bool | None = None,
        stop: str | Sequence[str] = (),
        draft: Run | str | Path | None = None,
        draft_tokens: int = DRAFT_TOKENS,
    ) -> list[Generated]:
        """Continue a prompt: greedily, by beam if `num_beams` > 1, or by sampling if anything about it is set.

        A text ends before the first `stop` in what is new. A `draft`, another run over the same tokens or "lookup",
        makes one text quicker and leaves it as it is.
        """
        choose = chooser(temperature, top_k, top_p, seed)
        if num_beams > 1 and not isinstance(choose, Greedy):
            raise ConfigError("num_beams searches and temperature, top_k and top_p sample; give one or the other")
        if num_return_sequences > max(1, num_beams) and isinstance(choose, Greedy):
            raise ConfigError(
                f"num_return_sequences is {num_return_sequences}, but greedy search finds one text and a beam of "
                f"{num_beams} at most {num_beams}; sample (temperature=1) or widen the beam"
            )
        start, eos, stops = self._prompt(prompt), self._stop(stop_at_eos), Stops(stop)
        drafted, drafts = None, None
        if draft is not None:
            check_alone(num_beams, num_return_sequences)
            drafted, drafts = Drafted(), open_draft(self, draft)
        with threads(1 if num_beams * num_return_sequences == 1 else physical_cores()), evaluating(self.model):
            if num_beams > 1:
                found = self._beam(start, eos, max_new_tokens, num_beams, length_penalty, num_return_sequences)
            elif drafts is not None:
                new = self._drafted(start, eos, max_new_tokens, choose, drafts, draft_tokens, drafted)
                found = [(row, None) for row in self._until(stops, start, ([token] for token in new))]
            else:
                rows = self._rows(start, eos, max_new_tokens, choose, num_return_sequences, stops)
                found = [(row, None) for row in rows]
        before = start.tolist()
        written = len(self.tokenizer.decode(before))
        return [
            Generated(stops.cut(self.tokenizer.decode([*before, *new]), written), len(new), log_prob, drafted)
            for new, log_prob in found
        ]

    def _rows(
        self, start_T: Tensor, eos: int | None, limit: int, choose: Chooser, count: int, stops: Stops
    ) -> list[list[int]]:
        """The new tokens of `count` texts that are walked step by step."""
        named: dict[str, Any] = {"eos": eos, "bos": self.tokenizer.eos, "max_new_tokens": limit, "choose": choose}
        if not stops:
            return [row.tolist() for row in generate(self.model, start_T, num_return_sequences=count, **named)]
        walk = stream(self.model, start_T, num_return_sequences=count, **named)
        rows = self._until(stops, start_T, (token_B.tolist() for token_B in walk))
        return [row if eos not in row else row[: row.index(eos) + 1] for row in rows]

    def _until(self, stops: Stops, start_T: Tensor, steps: Iterator[list[int]]) -> list[list[int]]:
        """Rows that grow by a token each a step, until every one has a text in it that it is to stop before."""
        if not stops:
            return [list(row) for row in zip(*steps, strict=True)]
        line = _last_line(start_T.tolist(), self.tokenizer.eos)
        return stops.until(steps, lambda row: self.tokenizer.decode([*line, *row]), len(self.tokenizer.decode(line)))

    def stream(
        self,
        prompt: str = "",
        *,
        max_new_tokens: int = 200,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop_at_eos: bool | None = None,
        stop: str | Sequence[str] = (),
        draft: Run | str | Path | None = None,
        draft_tokens: int = DRAFT_TOKENS,
        drafted: Drafted | None = None,
    ) -> Iterator[str]:
        """The prompt, then its continuation in pieces as they are made; joined, they are what `generate` gives.

        `drafted` is kept up to date with how the draft fares.
        """
        start, eos, stops = self._prompt(prompt), self._stop(stop_at_eos), Stops(stop)
        drafts = None if draft is None else open_draft(self, draft)
        whole = self.tokenizer.decode(start.tolist())
        if whole:
            yield whole
        choose, bos = chooser(temperature, top_k, top_p, seed), self.tokenizer.eos
        if drafts is None:
            walk = stream(self.model, start, eos=eos, bos=bos, max_new_tokens=max_new_tokens, choose=choose)
            steps: Iterator[int] = (int(token_B[0]) for token_B in walk)
        else:
            steps = self._drafted(start, eos, max_new_tokens, choose, drafts, draft_tokens, drafted)
        pieces = self._pieces(start, steps)
        yield from stops.pieces(pieces) if stops else pieces

    def _pieces(self, start_T: Tensor, steps: Iterator[int]) -> Iterator[str]:
        """The text of tokens that come one by one after a prompt, in pieces of whole characters."""
        line = _last_line(start_T.tolist(), self.tokenizer.eos)
        shown = self.tokenizer.decode(line)
        for token in steps:
            line.append(token)
            text = self.tokenizer.decode(line)
            if text.startswith(shown) and not text.endswith("\ufffd") and text != shown:
                yield text[len(shown) :]
                shown = text
            if line[-1] == self.tokenizer.eos:
                line, shown = [], ""

    def _drafted(
        self,
        start_T: Tensor,
        eos: int | None,
        limit: int,
        choose: Chooser,
        drafts: Draft,
        draft_tokens: int,
        record: Drafted | None,
    ) -> Iterator[int]:
        return draft_search(
            self.model,
            self.model.start(1),
            self._after_eos(start_T),
            drafts.for_text(),
            eos=eos,
            max_new_tokens=limit,
            choose=choose,
            draft_tokens=draft_tokens,
            record=record,
        )

    def _beam(
        self, start_T: Tensor, eos: int | None, limit: int, beams: int, penalty: float, wanted: int
    ) -> list[tuple[list[int], float | None]]:
        best = beam_search(
            self.model,
            self.model.start(1),
            self._after_eos(start_T),
            eos=eos,
            beams=beams,
            max_new_tokens=limit,
            length_penalty=penalty,
            num_return_sequences=wanted,
        )
        return [(list(one.tokens), one.log_prob) for one in best[0]]

    def _prompt(self, prompt: str) -> Tensor:
        return torch.as_tensor(self.tokenizer.encode_block(prompt), dtype=torch.int64)

    def _after_eos(self, start_T: Tensor) -> Tensor:
        """A prompt after the `eos` before it, as one row, 1T."""
        return torch.cat([torch.tensor([self.tokenizer.eos]), start_T])[None].to(self.device)

    def _stop(self, stop_at_eos: bool | None) -> int | None:
        """Lines of words are sentences, so generation ends with one; elsewhere a newline is a character like others.

        An end that is no newline is that of the whole text.
        """
        if stop_at_eos is None:
            stop_at_eos = self.tokenizer.kind in ("word", "jieba") or not self.tokenizer.ends_lines
        return self.tokenizer.eos if stop_at_eos else None

    # Compressing

    @property
    def fingerprint(self) -> bytes:
        """Eight bytes that change with the weights or the tokeniser."""
        digest = hashlib.blake2b(digest_size=8)
        with (self.folder.path / "model.safetensors").open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        digest.update(self.tokenizer.fingerprint.encode())
        return digest.digest()

    def compress(self, file: str | Path, out: str | Path, *, progress: Progress | None = None) -> Compressed:
        """Write `file` to `out` in about as many bits as `evaluate` says."""
        return compress(
            self.model, self.tokenizer, open_texts([file]), Path(out), fingerprint=self.fingerprint, progress=progress
        )

    def decompress(self, file: str | Path, out: str | Path, *, progress: Progress | None = None) -> Compressed:
        """Write the text that `compress` put into `file` to `out`, byte for byte."""
        return decompress(
            self.model, self.tokenizer, Path(file), Path(out), fingerprint=self.fingerprint, progress=progress
        )

    # Vectors and alternatives

    def embed(
        self, lines: Iterable[str], *, pooling: Pooling = "mean", normalise: bool = False, layer: int | None = None
    ) -> np.ndarray[Any, Any]:
        """One vector a line, ND in float32: those of its tokens pooled by mean, max, first or last."""
        from chainrule.inference.embed import embed_lines

        found = list(embed_lines(self, lines, pooling=pooling, normalise=normalise, layer=layer))
        return np.stack(found) if found else np.zeros((0, 0), np.float32)

    @cached_property
    def word_table(self) -> WordTable:
        """The words of the run's embedding and their vectors."""
        from chainrule.inference.embed import table_of

        return table_of(self)

    def neighbours(self, word: str, top: int = 10) -> list[Neighbour]:
        """The words whose vectors have the largest cosine with that of a word."""
        return self.word_table.neighbours(word, top)

    def analogy(self, a: str, b: str, c: str, top: int = 10) -> list[Neighbour]:
        """The words nearest to a - b + c: king - man + woman."""
        return self.word_table.analogy(a, b, c, top)

    def choose(self, prompt: str, choices: Sequence[str]) -> list[Choice]:
        """Each alternative with its log p after a prompt, as they were given; `choices.best_of` takes the best."""
        from chainrule.inference.few_shot import Question, choose

        return next(choose(self, [Question(prompt, tuple(choices))]))

    # Telling

    def info(self) -> dict[str, Any]:
        """What this run is."""
        trained = "made_by" not in MODELS.get(self.config.model.name).about
        return {
            "run": str(self.folder.path),
            "model": self.config.model.name,
            **({"output": self.config.output.name} if trained else {}),
            "tokenizer": self.tokenizer.kind,
            "vocab_size": self.tokenizer.vocab_size,
            "parameters": self.parameters,
            **{key: value for key, value in self.result.items() if key not in ("parameters", "budget")},
            "signature": self.folder.read_signature(),
        }


def chooser(temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None) -> Chooser:
    """Greedy if nothing about sampling is set; a seed makes the same draws again."""
    if temperature is None and top_k is None and top_p is None:
        return Greedy()
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return Sample(
        1.0 if temperature is None else temperature,
        top_k=top_k,
        top_p=1.0 if top_p is None else top_p,
        generator=generator,
    )


def path_strings(paths: Paths) -> list[str]:
    return [str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]


def _groups(lines: Iterable[str], size: int = 512) -> Iterator[list[str]]:
    group: list[str] = []
    for line in lines:
        group.append(line)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _whole_lines(blocks: Iterable[str]) -> Iterator[str]:
    """The blocks of a text, those that end within a line joined to the next."""
    rest: list[str] = []
    for block in blocks:
        cut = block.rfind("\n") + 1
        if cut:
            yield "".join([*rest, block[:cut]])
            rest = []
        if block[cut:]:
            rest.append(block[cut:])
    if rest:
        yield "".join(rest)


def _last_line(tokens: list[int], eos: int) -> list[int]:
    """The tokens after the last eos."""
    for number in range(len(tokens) - 1, -1, -1):
        if tokens[number] == eos:
            return tokens[number + 1 :]
    return list(tokens)
