"""Ray Data: verbs of a run over a column of a dataset, with `map`, or with `Verb` in `Dataset.map_batches`.

import chainrule.ray

chainrule.ray.map(dataset, "runs/translator", "translate", column="german", workers=8).write_parquet("english")

It needs the extra `ray`.
"""

from __future__ import annotations

from chainrule.distributed.ray_data import Verb as Verb
from chainrule.distributed.ray_data import map as map
