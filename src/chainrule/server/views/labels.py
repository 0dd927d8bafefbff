"""Labels: what a classifier predicts and looks at, and the tags of words with their probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chainrule.server.errors import invalid
from chainrule.server.kinds import labeller
from chainrule.server.library import LoadedRun
from chainrule.server.limits import Limits
from chainrule.server.lines import Answer
from chainrule.server.views.bits import TextRequest

if TYPE_CHECKING:
    from chainrule.runs.labels import ClassifierRun, TaggerRun


class LabelsRequest(TextRequest):
    """A text to be labelled, or a pair of texts; a sentence to be tagged."""

    second: str | None = None

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("second", len(self.second or ""), limits.prompt_tokens)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        from chainrule.runs.labels import ClassifierRun  # here: it imports torch

        yield []
        run = labeller("classify", loaded.run)
        found = self._labels(run) if isinstance(run, ClassifierRun) else self._tags(run)
        return {"model": loaded.name, **found}

    def _labels(self, run: ClassifierRun) -> dict[str, Any]:
        paired = bool(run.config.model.options.get("pairs"))
        if paired and self.second is None:
            raise invalid("this run labels pairs of texts; give second", "second", "missing_field")
        given: Any = (self.text, self.second) if paired else self.text
        (best,) = run.classify([given], top=len(run.labels))
        attends = run.model.config.pooling.startswith("attention")
        return {
            "kind": "labels",
            "several": bool(run.model.config.multi_label),
            "labels": [{"label": one.label, "probability": one.probability} for one in best],
            "pooling": run.model.config.pooling,
            "attention": run.attention([given])[0].to_dict() if attends else None,
        }

    def _tags(self, run: TaggerRun) -> dict[str, Any]:
        words = self.text.split()
        tags, probabilities_NC = run.tag(self.text), run.probabilities(self.text)
        return {
            "kind": "tags",
            "labels": list(run.labels),
            "words": [
                {"word": word, "tag": tag, "probabilities": row_C.tolist()}
                for word, tag, row_C in zip(words, tags, probabilities_NC, strict=True)
            ],
        }
