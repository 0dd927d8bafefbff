"""Mixtures are not trained from text: `chainrule mix` fits their weights."""

from __future__ import annotations

from chainrule.base.grammar import with_article
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.registry import FITTINGS
from chainrule.training.fitting.fitting import Fitted, Fitting, Job


class Mixing(Fitting):
    """Refuses a text, with the command to use instead."""

    name = "mix"

    def check(self, config: RunConfig) -> None:
        raise self._refusal(config)

    def fit(self, job: Job) -> Fitted:
        raise self._refusal(job.config)

    def _refusal(self, config: RunConfig) -> ConfigError:
        name = with_article(config.model.name)
        return ConfigError(f"{name} combines trained runs; use: chainrule mix RUN RUN --valid TEXT --out RUN")


FITTINGS.register("mix")(Mixing())
