"""Which verbs the runs of a model have: those of its task and of the model, without vectors where it has none."""

from __future__ import annotations

from chainrule.registry import RUNS, Entry
from chainrule.types import Model


def verbs_of(model: Entry) -> tuple[str, ...]:
    """The verbs of the runs of a registered model."""
    missing = names_without_vectors(model.make)
    return (*model.make.further_verbs, *(verb for verb in RUNS.get(model.task).make.verbs if verb not in missing))


def names_without_vectors(make: type[Model]) -> set[str]:
    """The names that runs of a model class lack because it has no vectors of words or texts."""
    has_words = make.word_vectors is not Model.word_vectors
    missing: set[str] = set()
    if not has_words and make.text_encoder is Model.text_encoder:
        missing |= {"embed", "search"}
    if not has_words and make.word_table is Model.word_table:
        missing |= {"neighbours", "analogy", "word_table"}
    return missing
