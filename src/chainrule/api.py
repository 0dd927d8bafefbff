"""The public face in Python: `train`, `load`, and the `Run` they give.

import chainrule as cr
run = cr.train("book.txt", model="lstm", minutes=5)
run.evaluate("test.txt").bits_per_byte
run.generate("The ")
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from chainrule.translator_run import TranslatorRun

from chainrule.config import RunConfig, merge, parse, read_toml
from chainrule.corpora import training_texts
from chainrule.data.store import TokenStore, open_store
from chainrule.decoding import Chooser, Greedy, Sample, beam_search, generate, stream
from chainrule.errors import ConfigError, RunError
from chainrule.evaluation.compression import Compressed, compress, decompress
from chainrule.evaluation.perplexity import Progress, evaluating
from chainrule.evaluation.report import Evaluation, evaluate
from chainrule.evaluation.speed import generation_speed
from chainrule.fitting import Listener, fit
from chainrule.machine import choose_device, physical_cores, threads
from chainrule.registry import MODELS
from chainrule.runs import RunFolder, count_parameters, load_model
from chainrule.text.parallel import ordered_map
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.base import Ids

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


class Run:
    """A trained model with its tokeniser and its folder."""

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

    # Measuring

    def open(self, texts: Paths, *, field: str | None = None, progress: Progress | None = None) -> TokenStore:
        """A text as this run's tokens."""
        sources = [texts] if isinstance(texts, str | Path) else list(texts)
        return open_store(open_texts(sources, field=field or self.config.data.field), self.tokenizer, progress=progress)

    def evaluate(self, texts: Paths, *, field: str | None = None, progress: Progress | None = None) -> Evaluation:
        """Perplexity, bits per byte and the rest on a text, with protocol and signature."""
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
    ) -> list[Generated]:
        """Continue a prompt: greedily, by beam if `num_beams` > 1, or by sampling if anything about it is set."""
        choose = chooser(temperature, top_k, top_p, seed)
        if num_beams > 1 and not isinstance(choose, Greedy):
            raise ConfigError("num_beams searches and temperature, top_k and top_p sample; give one or the other")
        if num_return_sequences > max(1, num_beams) and isinstance(choose, Greedy):
            raise ConfigError(
                f"num_return_sequences is {num_return_sequences}, but greedy search finds one text and a beam of "
                f"{num_beams} at most {num_beams}; sample (temperature=1) or widen the beam"
            )
        start, eos = self._prompt(prompt), self._stop(stop_at_eos)
        with threads(1 if num_beams * num_return_sequences == 1 else physical_cores()), evaluating(self.model):
            if num_beams > 1:
                found = self._beam(start, eos, max_new_tokens, num_beams, length_penalty, num_return_sequences)
            else:
                rows = generate(
                    self.model,
                    start,
                    eos=eos,
                    bos=self.tokenizer.eos,
                    max_new_tokens=max_new_tokens,
                    choose=choose,
                    num_return_sequences=num_return_sequences,
                )
                found = [(row.tolist(), None) for row in rows]
        before = start.tolist()
        return [Generated(self.tokenizer.decode([*before, *new]), len(new), log_prob) for new, log_prob in found]

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
    ) -> Iterator[str]:
        """The prompt, then its continuation in pieces as they are made; joined, they are what `generate` gives."""
        start = self._prompt(prompt)
        whole = self.tokenizer.decode(start.tolist())
        if whole:
            yield whole
        line = _last_line(start.tolist(), self.tokenizer.eos)
        shown = self.tokenizer.decode(line)
        choose = chooser(temperature, top_k, top_p, seed)
        steps = stream(
            self.model,
            start,
            eos=self._stop(stop_at_eos),
            bos=self.tokenizer.eos,
            max_new_tokens=max_new_tokens,
            choose=choose,
        )
        for token_B in steps:
            line.append(int(token_B[0]))
            text = self.tokenizer.decode(line)
            if text.startswith(shown) and not text.endswith("\ufffd") and text != shown:
                yield text[len(shown) :]
                shown = text
            if line[-1] == self.tokenizer.eos:
                line, shown = [], ""

    def _beam(
        self, start_T: Tensor, eos: int | None, limit: int, beams: int, penalty: float, wanted: int
    ) -> list[tuple[list[int], float | None]]:
        prompt_BT = torch.cat([torch.tensor([self.tokenizer.eos]), start_T])[None].to(self.device)
        best = beam_search(
            self.model,
            self.model.start(1),
            prompt_BT,
            eos=eos,
            beams=beams,
            max_new_tokens=limit,
            length_penalty=penalty,
            num_return_sequences=wanted,
        )
        return [(list(one.tokens), one.log_prob) for one in best[0]]

    def _prompt(self, prompt: str) -> Tensor:
        return torch.as_tensor(self.tokenizer.encode_block(prompt), dtype=torch.int64)

    def _stop(self, stop_at_eos: bool | None) -> int | None:
        """Lines of words are sentences, so generation ends with one; elsewhere a newline is a character like others."""
        if stop_at_eos is None:
            stop_at_eos = self.tokenizer.kind in ("word", "jieba")
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


def load(path: str | Path, *, device: str = "auto") -> Run:
    """The run in a folder, its model on the best device there is; a translator comes as a TranslatorRun."""
    run = Run(path, device=device)
    if MODELS.get(run.config.model.name).about["task"] != "seq2seq":
        return run
    from chainrule.translator_run import TranslatorRun

    return TranslatorRun(path, device=device)


def load_translator(path: str | Path, *, device: str = "auto") -> TranslatorRun:
    """The translator in a folder; what is no translator is refused."""
    from chainrule.translator_run import TranslatorRun

    run = load(path, device=device)
    if not isinstance(run, TranslatorRun):
        raise RunError(
            f"{path} is a {run.config.model.name}, which is no translator; train one with: chainrule train SOURCE "
            "TARGET --model seq2seq-transformer, or use chainrule generate"
        )
    return run


def import_model(path: str | Path, out: str | Path, *, note: Callable[[str], None] = lambda text: None) -> Run:
    """A model that another program made, as a run: an ARPA file of n-grams."""
    from chainrule.interop.arpa import import_arpa

    return Run(import_arpa(Path(path), Path(out), note=note).path)


def train(
    *data: str | Path,
    model: str | None = None,
    valid: Paths = (),
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    output: str | None = None,
    objective: str | None = None,
    init: str | Path | None = None,
    config: str | Path | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    memory: str | None = None,
    max_tokens: int | None = None,
    field: str | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
    **model_options: Any,
) -> Run:
    """Train a model on text; the same call again goes on where it stopped.

    `settings` are nested as in config.toml; `model_options` are those of its section `model`, such as order=3.
    """
    named: dict[str, Any] = {
        "seed": seed,
        "init": None if init is None else str(init),
        "data": {"train": [str(path) for path in data], "valid": path_strings(valid), "field": field},
        "tokenizer": {"kind": tokenizer, "vocab_size": vocab_size},
        "model": {"name": model, **model_options},
        "output": {"name": output},
        "objective": {"name": objective},
        "training": {
            "minutes": minutes,
            "steps": steps,
            "epochs": epochs,
            "device": device,
            "memory": memory,
            "max_tokens": max_tokens,
        },
    }
    whole = make_config(config, named, settings or {})
    place = Path(out) if out else default_folder(whole)
    if "parts" in whole.model.options:  # a recipe for a mixture
        from chainrule.mixing import train_mixture

        return train_mixture(whole, place, listener or Listener())
    return load(fit(whole, place, listener).folder.path)


def make_config(file: str | Path | None, named: Mapping[str, Any], settings: Mapping[str, Any]) -> RunConfig:
    """A run's configuration from a file, then named options, then settings, the later ones winning."""
    values = merge(read_toml(file) if file else {}, _without_empty(named))
    values = merge(values, settings)
    if values.get("init"):
        values = merge(_start(Path(values["init"]), values.get("model", {}).get("name")), values)
    for section, default in (("model", "lstm"), ("output", "softmax"), ("objective", "likelihood")):
        values[section] = {"name": default, **values.get(section, {})}
    return parse(RunConfig, values)


def _start(path: Path, model: str | None) -> dict[str, Any]:
    """What a run that starts from another one takes over: tokeniser, model and output layer."""
    start = RunFolder(path).read_config()
    if model is not None and model != start.model.name:
        raise ConfigError(
            f"{path} is a {start.model.name} and cannot be the start of a {model}; leave --model out, or start anew"
        )
    taken = start.model_dump(mode="json", exclude_none=True, include={"tokenizer", "model", "output"})
    return {"data": {"prefix": start.data.prefix} if start.data.prefix else {}, **taken}


def default_folder(config: RunConfig) -> Path:
    """runs/MODEL-TEXT."""
    return Path("runs") / f"{config.model.name}-{text_name(config.data.train[0] if config.data.train else 'text')}"


def text_name(source: str | Path) -> str:
    """A short name for a text, fit for a folder: dir/book.txt.gz -> book."""
    return "stdin" if str(source) == "-" else Path(str(source)).name.partition(".")[0].replace(":", "-")


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


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were not given left out, at every depth."""
    kept = {key: _without_empty(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    return {key: value for key, value in kept.items() if value not in (None, {}, [])}


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
