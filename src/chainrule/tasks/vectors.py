"""Word vectors: one vector per word of a text, learned from the words around it."""

from __future__ import annotations

from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.registry import TASKS
from chainrule.tasks.task import Listener, Task
from chainrule.tasks.text_corpus import TextCorpus, open_text_corpus, refuse_pairs


@TASKS.register("vectors", kind="embedding")
class WordVectors(Task):
    """One text, all of it to learn from: vectors are measured on word pairs, not on held-out text."""

    def open(self, config: RunConfig, folder: RunFolder, listener: Listener) -> TextCorpus:
        refuse_pairs(config.data.train, config.model.name)
        return open_text_corpus(TextCorpus, config, folder, listener, whole=True)
