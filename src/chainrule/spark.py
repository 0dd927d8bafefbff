"""Apache Spark: `count` a text column into n-gram counts, `estimate` their model, `map` a verb over a column.

import chainrule.spark

chainrule.spark.count(frame, tokenizer="tokenizer", out="counts")
chainrule.spark.estimate("counts", session, out="runs/ngram")
chainrule.spark.map(frame, "runs/translator", "translate", column="german")

It needs the extra `spark` and a JRE 17.
"""

from __future__ import annotations

from chainrule.distributed.spark.model import estimate as estimate
from chainrule.distributed.spark.verbs import map as map
from chainrule.distributed.spark.windows import count as count
