"""The run of a request as the class that has a verb.

The classes are imported here when a request needs them: by then its run is loaded, and with it what the class computes
with. So a server listens before any model library is imported, and n-grams are served without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from chainrule.runs.base import MissingVerbError, Run

if TYPE_CHECKING:
    from chainrule.runs.labels import ClassifierRun, TaggerRun
    from chainrule.runs.language_model import LanguageModelRun
    from chainrule.runs.masked import MaskedRun
    from chainrule.runs.translator import TranslatorRun

R = TypeVar("R", bound=Run)


def language_model(verb: str, run: Run) -> LanguageModelRun:
    """The run as a language model; an error that names the verb if it is none."""
    from chainrule.runs.language_model import LanguageModelRun

    return _of_kind(LanguageModelRun, verb, run)


def translator(verb: str, run: Run) -> TranslatorRun:
    """The run as a translator."""
    from chainrule.runs.translator import TranslatorRun

    return _of_kind(TranslatorRun, verb, run)


def classifier(verb: str, run: Run) -> ClassifierRun:
    """The run as a classifier."""
    from chainrule.runs.labels import ClassifierRun

    return _of_kind(ClassifierRun, verb, run)


def tagger(verb: str, run: Run) -> TaggerRun:
    """The run as a tagger."""
    from chainrule.runs.labels import TaggerRun

    return _of_kind(TaggerRun, verb, run)


def labeller(verb: str, run: Run) -> ClassifierRun | TaggerRun:
    """The run as a classifier or a tagger."""
    from chainrule.runs.labels import ClassifierRun, TaggerRun

    if isinstance(run, ClassifierRun | TaggerRun):
        return run
    raise run.missing(verb)


def filler(verb: str, run: Run) -> MaskedRun | TranslatorRun:
    """The run as a model that fills gaps."""
    from chainrule.runs.masked import MaskedRun
    from chainrule.runs.translator import TranslatorRun

    if isinstance(run, MaskedRun | TranslatorRun):
        return run
    raise run.missing(verb)


def _of_kind(kind: type[R], verb: str, run: Run) -> R:
    if isinstance(run, kind):
        return run
    if verb in run.available_verbs:
        raise MissingVerbError(f"{run.name} has {verb} on the command line only; use chainrule {verb}")
    raise run.missing(verb)
