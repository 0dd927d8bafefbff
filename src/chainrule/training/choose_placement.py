"""The placement of the weights that the options of a training ask for."""

from __future__ import annotations

from chainrule.base.processes import Processes
from chainrule.config import TrainingConfig
from chainrule.errors import ConfigError
from chainrule.training.placement import Placement


def placement_of(config: TrainingConfig, processes: Processes, *, shardable: bool, samples: bool) -> Placement:
    """The placement that the options ask for.

    `shardable`: whether the model can be divided; `samples`: whether the objective draws tokens from the model.
    """
    if not config.shard:
        return Placement()
    if processes.world == 1:
        raise ConfigError(
            "training.shard divides a model among several processes, but this is the only one; start it with torchrun"
        )
    if not shardable or config.compile or samples or config.optimizer == "muon":
        raise ConfigError(
            "training.shard needs --model transformer, training.optimizer=adamw or sgd, an objective that does not "
            "sample, and no training.compile; change these or leave training.shard out"
        )
    from chainrule.training.sharding import ShardedPlacement  # the libraries behind it take a while to import

    return ShardedPlacement()
