"""`count`: one shard of a text to a folder of n-gram counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count as numbers
from pathlib import Path
from typing import Any

from chainrule.base.arrays import Array
from chainrule.base.devices import physical_cores, return_large_blocks
from chainrule.base.files import folder_atomically
from chainrule.base.parallel import ordered_map
from chainrule.base.progress import Progress
from chainrule.base.targets import check_folder
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import TokenizerConfig, parse_bytes
from chainrule.distributed.counts_folder import MAX_ORDER, CountsFolder, Shard, read_counts, write_counts
from chainrule.distributed.manifest import MANIFEST
from chainrule.engines.ngram.segments import BYTES_PER_TOKEN, Shape, count_segment
from chainrule.errors import ConfigError
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts, open_texts
from chainrule.text.tokenizers import Tokenizer, train_tokenizer

UNFITTED = "byte"
"""The kind of tokeniser that needs no text."""


def count(
    *texts: str | Path,
    out: str | Path,
    like: str | Path | None = None,
    tokenizer: str | Path | None = None,
    order: int = 5,
    across_lines: bool | None = None,
    memory: str = "1G",
    field: str | None = None,
    note: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> CountsFolder:
    """Count the n-grams of one shard of a text; `merge` makes a model of the counts of all shards.

    Args:
        *texts: The shard: files or folders, which end at a line end.
        out: Folder of the counts. If it holds those of the same shard, it is left alone.
        like: A run whose tokeniser is used.
        tokenizer: The file or folder of a tokeniser, or "byte". Give this or `like`.
        order: Length of the n-grams.
        across_lines: Whether n-grams cross line ends. None: unless the tokens are words.
        memory: Bound of the memory for sorting.
        field: Name of the JSON field with the texts. None: "text".
        note: Called with messages.
        progress: Called with the bytes done and the total.

    Returns:
        The folder of counts.
    """
    if not 1 <= order <= MAX_ORDER:
        raise ConfigError(f"order is {order}; expected 1 to {MAX_ORDER}")
    folder = Path(out)
    check_folder(folder, (folder / MANIFEST).exists)
    return_large_blocks()
    opened = open_texts(texts, field=field or "text")
    known, options = shared_tokenizer(like, tokenizer, opened)
    across = not known.word_tokens if across_lines is None else across_lines
    shape = Shape(order, known.eos, across, known.vocab_size)
    if (folder / MANIFEST).exists():
        return _same_counts(folder, shape, known, opened, note)
    part = max(order, parse_bytes(memory, "memory") // BYTES_PER_TOKEN)
    with folder_atomically(folder) as building:
        names = (building / f"run-{number}.bin" for number in numbers())
        counts = count_segment(
            _blocks(opened, known, progress), shape, names.__next__, part=part, threads=physical_cores()
        )
        shard = Shard(opened.fingerprint(), opened.size, counts.segment.tokens)
        write_counts(building, counts, known, options.model_dump(mode="json", exclude_none=True), (shard,))
    return read_counts(folder)


def shared_tokenizer(
    like: str | Path | None, given: str | Path | None, texts: Texts
) -> tuple[Tokenizer, TokenizerConfig]:
    """The tokeniser that all shards share, and its options."""
    if (like is None) == (given is None):
        raise ConfigError("give either --like RUN or --tokenizer FILE: all shards must have the same tokeniser")
    if like is not None:
        run = RunFolder.open(like)
        tokenizer, options = run.read_tokenizer(), run.read_config().tokenizer
    else:
        if str(given) in TOKENIZERS.names() and given != UNFITTED:
            raise ConfigError(
                f"--tokenizer {given} would be fitted to each shard separately; give the file of a fitted tokeniser, "
                "or --like RUN"
            )
        tokenizer = train_tokenizer(str(given), texts)
        options = TokenizerConfig(kind=tokenizer.kind, vocab_size=tokenizer.vocab_size)
    if not tokenizer.ends_lines:
        raise ConfigError(
            f"the tokeniser {tokenizer.kind} has tokens that join lines, so shards cannot be counted separately; "
            "use chainrule train"
        )
    return tokenizer, options


def _same_counts(
    folder: Path, shape: Shape, tokenizer: Tokenizer, texts: Texts, note: Callable[[str], None]
) -> CountsFolder:
    """The finished counts of a folder, if they are those asked for."""
    found = read_counts(folder)
    if found.kind != (shape, tokenizer.fingerprint) or [one.data for one in found.shards] != [texts.fingerprint()]:
        raise ConfigError(f"{folder} holds the counts of another text, order or tokeniser; choose another --out")
    found.check()
    note(f"{folder} is already finished")
    return found


def _blocks(texts: Texts, tokenizer: Tokenizer, progress: Progress | None) -> Iterator[Array]:
    """The tokens of a text in blocks, encoded by several threads where that is faster."""
    done = 0

    def encode(block: str) -> tuple[Any, int]:
        return tokenizer.encode_block(block), len(block.encode(errors="surrogateescape")) if progress else 0

    for ids, size in ordered_map(encode, tokenizer.blocks(texts), physical_cores() if tokenizer.concurrent else 1):
        yield ids
        if progress:
            done += size
            progress(done, texts.size)
