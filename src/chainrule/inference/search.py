"""How translations are looked for: by a beam, all words at once, or word by word with drafts.

Legend: B batch, T time, S source time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from chainrule.decoding import (
    Drafted,
    Drafter,
    Ensemble,
    Hypothesis,
    LookupDrafter,
    StepperDrafter,
    beam_search,
    draft_one,
)
from chainrule.decoding.draft import DRAFT_TOKENS, check_draft_tokens
from chainrule.errors import ConfigError
from chainrule.evaluation.pairs import source_of
from chainrule.types import Source

if TYPE_CHECKING:
    from chainrule.runs.language_model import Run
    from chainrule.runs.translator import TranslatorRun


@dataclass(frozen=True)
class Search:
    """How translations are looked for."""

    num_beams: int = 5
    length_penalty: float = 1.0
    num_return_sequences: int = 1
    max_new_tokens: int | None = None  # None: twice the source and some
    prefix: str = ""  # what every translation begins with
    copy_unknown: bool = True  # <unk> becomes the source word that was most attended to
    attention: bool = False  # tell where the model looked
    batch_size: int = 32  # lines translated together at most
    mode: str = "ar"  # hybrid: ar writes step by step, nar all words at once, draft what greedy ar does in few passes
    lengths: int = 1  # mode nar: so many lengths are tried, and the step-by-step branch chooses
    refine: int = 0  # mode nar: the least certain words are written again so many times
    draft: Run | str | None = (
        None  # a run that drafts for greedy search, or `lookup`: in what was written and the source
    )
    draft_tokens: int = DRAFT_TOKENS  # so many at once at most

    @property
    def told(self) -> str:
        """The search in words, for a protocol."""
        if self.mode == "nar":
            return f"one parallel pass, {self.lengths} length(s), {self.refine} refinement(s)"
        if self.mode == "draft" or self.draft is not None:
            return "greedy search, checked drafts"
        if self.num_beams == 1:
            return "greedy search"
        return f"beam search, {self.num_beams} beams, length penalty {self.length_penalty:g}"


class Found(NamedTuple):
    """The translations of a line, the best first, and how a draft fared where there was one."""

    hypotheses: list[Hypothesis]
    drafted: Drafted | None = None


def check_together(runs: Sequence[TranslatorRun], search: Search) -> None:
    """Runs that translate together must write the same tokens; attention must be there to be told."""
    first = runs[0]
    for run in runs[1:]:
        if run.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise ConfigError(
                f"{first.folder.path} and {run.folder.path} write different tokens, so they cannot translate together; "
                "train them with one tokenizer (--tokenizer FOLDER)"
            )
    if search.attention and not first.model.attends:
        raise ConfigError(
            f"{first.folder.path} is a {first.config.model.name}, which has no attention to show; leave --attention out"
        )
    if search.mode != "ar":
        _check_mode(runs, search)
    elif search.lengths != 1 or search.refine:
        raise ConfigError("lengths and refine are of --mode nar, which writes all words at once; give that mode too")
    if search.draft is not None:
        _check_draft(runs, search)
    if search.num_beams < 1:
        raise ConfigError(f"the beam has {search.num_beams} places, but at least 1 is needed.")
    if search.max_new_tokens is not None and search.max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens is {search.max_new_tokens}, but at least 1 token must be asked for.")
    if search.batch_size < 1:
        raise ConfigError(f"batch_size is {search.batch_size}, but at least 1 line must be translated at a time.")


def _check_mode(runs: Sequence[TranslatorRun], search: Search) -> None:
    """Writing all words at once is what `hybrid` can, by itself and from the first word on."""
    first, modes = runs[0], runs[0].model.modes
    if search.mode not in modes:
        raise ConfigError(
            f"--mode is {search.mode}, but {first.folder.path} is a {first.config.model.name}, which knows "
            f"{', '.join(modes)}; train a hybrid for others"
        )
    if len(runs) > 1 or search.prefix or search.num_return_sequences > 1:
        raise ConfigError(f"--mode {search.mode} gives one translation by one run; leave ensemble, prefix, n-best out")
    if search.num_beams > 1:
        raise ConfigError(f"--mode {search.mode} keeps no beam; leave --num-beams out, or search with --mode ar")
    if search.lengths < 1 or search.refine < 0 or (search.mode == "draft" and (search.lengths > 1 or search.refine)):
        raise ConfigError(
            f"--mode {search.mode} with lengths = {search.lengths} and refine = {search.refine}: mode nar takes at "
            "least 1 length and 0 refinements, mode draft neither"
        )


def _check_draft(runs: Sequence[TranslatorRun], search: Search) -> None:
    """A draft is of the same tokens, and for one sequence at a time."""
    check_draft_tokens(search.draft_tokens)
    if len(runs) > 1 or search.num_beams > 1 or search.num_return_sequences > 1 or search.mode != "ar":
        raise ConfigError("a draft is for greedy search by one run; leave ensemble, --num-beams, n-best and --mode out")
    if isinstance(search.draft, str):
        if search.draft != "lookup":
            raise ConfigError(f"draft is '{search.draft}'; it is a run, or lookup")
    elif search.draft is not None and search.draft.tokenizer.fingerprint != runs[0].tokenizer.fingerprint:
        raise ConfigError(
            f"{search.draft.folder.path} has other tokens than {runs[0].folder.path}, so it cannot draft for it; train "
            f"it with --tokenizer {runs[0].folder.path}"
        )


def look_for(
    runs: Sequence[TranslatorRun],
    sources: list[Source],
    texts: list[str],
    prompt_BT: Tensor,
    limits: list[int],
    search: Search,
) -> list[Found]:
    """The translations of some lines, given each run's source of them, their texts, and the most tokens of each."""
    eos, models = runs[0].tokenizer.eos, [run.model for run in runs]
    if search.mode != "ar":
        return _in_parallel(models[0], sources[0], eos, limits, search)
    if search.draft is not None:
        return [
            _by_draft(
                runs[0], Source(*(part[row : row + 1] for part in sources[0])), text, prompt_BT[:1], limit, search
            )
            for row, (text, limit) in enumerate(zip(texts, limits, strict=True))
        ]
    stepper: Any = models[0] if len(models) == 1 else Ensemble(models)
    found = beam_search(
        stepper,
        stepper.start(sources[0] if len(models) == 1 else sources),
        prompt_BT,
        eos=eos,
        beams=search.num_beams,
        max_new_tokens=limits,
        length_penalty=search.length_penalty,
        num_return_sequences=search.num_return_sequences,
    )
    return [Found(hypotheses) for hypotheses in found]


def _in_parallel(model: Any, source: Source, eos: int, limits: list[int], search: Search) -> list[Found]:
    """All words at once; how probable they are is not known."""
    from chainrule.decoding.parallel import draft_in_parallel, translate_in_parallel

    if search.mode == "nar":
        rows, passes = translate_in_parallel(model, source, lengths=search.lengths, refine=search.refine, eos=eos), None
    else:
        rows, passes = draft_in_parallel(model, source, eos=eos, limits=limits)
    kept = [row[:limit] for row, limit in zip(rows, limits, strict=True)]
    drafted = [None] * len(kept) if passes is None else [Drafted(passes=count) for count in passes]
    return [Found([Hypothesis(row, math.nan, math.nan)], one) for row, one in zip(kept, drafted, strict=True)]


def _by_draft(run: TranslatorRun, source_1: Source, text: str, prompt_1T: Tensor, limit: int, search: Search) -> Found:
    """One line, greedily, with a draft that is checked."""
    length = int(source_1.mask_BS.sum())
    source_1 = Source(*(part[:, :length] for part in source_1))
    state = run.model.start(source_1)
    drafter = _drafter(run, source_1, text, search)
    tokens, drafted = draft_one(
        run.model, state, prompt_1T, drafter, run.tokenizer.eos, limit, draft_tokens=search.draft_tokens
    )
    return Found([Hypothesis(tokens, math.nan, math.nan)], drafted)


def _drafter(run: TranslatorRun, source_1: Source, text: str, search: Search) -> Drafter:
    """Who drafts a translation of a line: another translator of it, a language model, or what was seen already."""
    draft = search.draft
    if not draft or isinstance(draft, str):
        one = run.source_tokenizer.fingerprint == run.tokenizer.fingerprint
        return LookupDrafter(source_1.tokens_BS[0].tolist() if one else ())
    from chainrule.runs.translator import TranslatorRun  # which is made of this

    if not isinstance(draft, TranslatorRun):
        return StepperDrafter(draft.model, draft.model.start(1))
    rows = draft.encode_source(text)
    read = source_of([rows], draft.source_tokenizer.eos, draft.device)
    return StepperDrafter(draft.model, draft.model.start(read), window=draft.model.window)
