"""`merge`: the counts of the shards of a text to one folder of counts, or to a model."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.devices import PeakMemory, physical_cores
from chainrule.base.files import folder_atomically
from chainrule.base.processes import Processes
from chainrule.base.targets import check_folder
from chainrule.checkpoint.build import model_options, save_model
from chainrule.checkpoint.folder import TRAINING_SECTIONS, RunFolder
from chainrule.config import RunConfig, parse_bytes
from chainrule.data.store import TokenStore, open_store
from chainrule.distributed.counts_folder import CountsFolder, read_counts, write_counts
from chainrule.distributed.manifest import MANIFEST
from chainrule.engines.ngram.segments import Counts, join, merge_counts
from chainrule.engines.ngram.smoothing import fits_on_validation
from chainrule.errors import ConfigError, DataError
from chainrule.models.ngram import Ngram, NgramConfig
from chainrule.runs.base import Run
from chainrule.runs.load import load
from chainrule.tasks.task import Corpus, model_task
from chainrule.tasks.text_corpus import validation_text
from chainrule.training.fitting.fitting import Job, TrainingListener, budget_of
from chainrule.training.request import make_config
from chainrule.training.resume import check_same_data, check_same_request, request_of

Note = Callable[[str], None]


@dataclass
class CountedCorpus(Corpus):
    """A text of which only the counts are there."""

    data: str = ""  # fingerprint of the shards
    valid: TokenStore | None = None

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"data": self.data, **({"valid": self.valid.fingerprint} if self.valid is not None else {})}


def merge(
    *folders: str | Path,
    out: str | Path,
    valid: str | Path | Sequence[str | Path] = (),
    memory: str | None = None,
    repeats: bool = False,
    settings: Mapping[str, Any] | None = None,
    note: Note = lambda text: None,
    **options: Any,
) -> Run:
    """Estimate an n-gram model from the counts of all shards; the model is that of `train` on the whole text.

    Args:
        *folders: The folders of `count` or `merge_shards`, in the order of the text.
        out: Folder of the run. If it holds the same model, it is used.
        valid: Validation text, which some smoothings are fitted on.
        memory: Bound of the memory, for example "4G"; the rest goes to disk. None: no bound.
        repeats: Whether a shard may be among the counts more than once.
        settings: Further options, nested as in config.toml.
        note: Called with messages.
        **options: Options of the model: smoothing, delta, prune, quantize.

    Returns:
        The run.
    """
    counted = read_all(folders, repeats)
    paths = [str(path) for path in ([valid] if isinstance(valid, str | Path) else valid)]
    limit = parse_bytes(memory, "memory") if memory else None

    def make(config: NgramConfig, scratch: Path, validation: Array) -> Ngram:
        parts, shape = [one.counts for one in counted], counted[0].counts.shape
        threads = physical_cores()
        return Ngram.from_counts(
            config, parts, shape, validation, scratch=scratch, memory=limit, threads=threads, note=note
        )

    return merge_into_run(counted, out, make, valid=paths, options=options, settings=settings, note=note)


def merge_into_run(
    counted: list[CountsFolder],
    out: str | Path,
    make: Callable[[NgramConfig, Path, Array], Ngram],
    *,
    options: Mapping[str, Any],
    valid: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    note: Note = lambda text: None,
) -> Run:
    """The run of counted shards; `make` estimates its model, given options, a folder, and a text to fit weights on."""
    shape, first = counted[0].counts.shape, counted[0]
    named = {
        "data": {"valid": list(valid)},
        "tokenizer": first.tokenizer_options,
        "model": {"name": "ngram", "order": shape.order, "across_lines": shape.across_lines, **options},
    }
    config, folder = make_config(None, named, settings or {}), RunFolder(out)
    check_folder(folder.path, folder.begun)
    check_same_request(folder, config)
    corpus = _corpus(counted, config)
    check_same_data(folder, corpus)
    if folder.read_result() and folder.has_model():
        note(f"{out} is already finished; choose another --out")
        return load(out)
    for one in counted:
        one.check()
    job = Job(
        config,
        model_task(config.model.name),
        corpus,
        folder,
        request_of(config),
        TrainingListener(note=note),
        Processes.join(),
    )
    with job.held:
        _estimate(job, corpus, make)
    return load(out)


def merge_shards(
    *folders: str | Path, out: str | Path, repeats: bool = False, note: Note = lambda text: None
) -> CountsFolder:
    """Merge the counts of several shards into one folder, which can be merged again.

    Args:
        *folders: The folders of `count` or `merge_shards`, in the order of the text.
        out: Folder of the counts. If it holds the same counts, it is left alone.
        repeats: Whether a shard may be among the counts more than once.
        note: Called with messages.

    Returns:
        The folder of counts.
    """
    counted, target = read_all(folders, repeats), Path(out)
    check_folder(target, (target / MANIFEST).exists)
    shards = tuple(shard for one in counted for shard in one.shards)
    if (target / MANIFEST).exists():
        found = read_counts(target)
        if found.kind != counted[0].kind or [one.data for one in found.shards] != [one.data for one in shards]:
            raise ConfigError(f"{target} holds the counts of other shards; choose another --out")
        found.check()
        note(f"{target} is already finished")
        return found
    for one in counted:
        one.check()
    first = counted[0]
    with folder_atomically(target) as building:
        ends = building / "ends"
        joined = join([one.counts for one in counted], first.counts.shape, ends)
        merged = merge_counts(joined, building / "run-0.bin")
        if len(joined.runs) < 2:  # a single run is copied
            merged = _copied(joined, building / "run-0.bin")
        ends.unlink(missing_ok=True)
        write_counts(building, merged, first.read_tokenizer(), first.tokenizer_options, shards)
    return read_counts(target)


def _copied(counts: Counts, path: Path) -> Counts:
    from chainrule.engines.ngram.merging import merge_into

    run = merge_into(path, counts.runs, counts.shape.order, counts.shape.vocab_size)
    return Counts(counts.shape, counts.segment, (run,))


def read_all(folders: Sequence[str | Path], repeats: bool) -> list[CountsFolder]:
    """The folders of counts, which must fit together."""
    if not folders:
        raise ConfigError("no counts were given; name the folders that chainrule count made")
    counted = [read_counts(folder) for folder in folders]
    for one in counted[1:]:
        if one.kind != counted[0].kind:
            raise DataError(
                f"{one.path} was counted with another tokeniser, order or line mode than {counted[0].path}; count all "
                "shards with the same options"
            )
    seen = Counter(shard.data for one in counted for shard in one.shards)
    if not repeats and (twice := [one for one in counted if any(seen[shard.data] > 1 for shard in one.shards)]):
        raise DataError(
            f"{twice[-1].path} has a text that is among the other counts too; leave one of them out, or add --repeats "
            "to count it twice"
        )
    return counted


def _corpus(counted: list[CountsFolder], config: RunConfig) -> CountedCorpus:
    digest = hashlib.blake2b(digest_size=16)
    for one in counted:
        for shard in one.shards:
            digest.update(bytes.fromhex(shard.data))
    digest.update(bytes.fromhex(counted[0].tokenizer))
    tokenizer = counted[0].read_tokenizer()
    valid = open_store(validation_text(config.data), tokenizer) if config.data.valid else None
    return CountedCorpus(tokenizer, config.tokenizer, digest.hexdigest(), valid)


def _estimate(job: Job, corpus: CountedCorpus, make: Callable[[NgramConfig, Path, Array], Ngram]) -> None:
    """Write the run."""
    options = model_options(job.config)
    if fits_on_validation(options.smoothing) and corpus.valid is None:
        raise ConfigError(f"{options.smoothing} is fitted on a validation text; give one with --valid")
    job.begin(job.config, unused=TRAINING_SECTIONS)
    peak, began = PeakMemory(), time.perf_counter()
    valid: Array = corpus.valid.tokens if corpus.valid is not None else np.empty(0, np.uint32)
    model = make(options, job.folder.path, valid)
    save_model(job.folder, model)
    seconds, tokens = time.perf_counter() - began, int(model.counts_V.sum())
    job.end(
        {
            "steps": 0,
            "seconds": round(seconds, 2),
            "train_seconds": round(seconds, 2),
            "tokens": tokens,
            "parameters": model.parameter_count,
            "tokens_per_second": round(tokens / seconds, 1),
            "ngrams": model.table.sizes,
            "budget": budget_of(job.config),
            "peak_memory": peak.bytes,
            "stopped": "all counts were merged",
        }
    )
