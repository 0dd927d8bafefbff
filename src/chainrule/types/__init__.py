"""The contract every model implements, and the records that pass between the parts.

Suffixes state shapes, and a letter means the same in every file:

    A  groups: the sources being decoded, each with W decoder rows
    B  batch: sequences processed side by side
    C  classes: labels or tags
    D  model width
    E  width of a part: one head, one direction, an encoder inside a model
    F  filters, features or statistics per item
    G  gate rows of a recurrent layer (gates × U)
    H  attention heads
    I  ids of the tokeniser, where V is a subset of them
    J  nodes of a tree or trie
    K  alternatives: beams, kept rows, candidates, draws, components of a mixture, resamples
    L  positions before the current ones: contents of a cache or window
    M  selected members of N: a chunk, masked positions
    N  items in one flat list: positions of a batch (B·T), tokens of a text, lines of a file
    O  n-gram orders
    P  examples of a data set: texts, pairs, sentences
    Q  queries
    R  rows of a decoder (A·W), or rows gathered from a table
    S  source positions: those of a text that is read, not predicted
    T  time: positions of the sequence that is predicted
    U  units of a recurrent state
    V  vocabulary
    W  decoder rows per group
    X  columns of several parts side by side (3·H·E, …)
    Y  contexts of an n-gram model
    Z  buckets

A digit is a size: row_1V is one row of V values. Tokens are integers. One token, `eos`, ends a line and also precedes
the first token of a text, so the distribution over the first token is `step(start(B), eos)`, and `log_probs(x)` scores
x[0] given `eos`.

A registered model inherits `Model`, or `SteppingModel` if it predicts token by token. These classes declare every
attribute and optional capability that other code relies on, each with a default, so nothing has to be probed.
"""

from __future__ import annotations

from chainrule.types.models import (
    Model,
    Objective,
    Preferences,
    SteppingModel,
)
from chainrule.types.protocols import (
    ArrayModel,
    ContextDepths,
    LineScorer,
    Scorer,
    Stepper,
    StreamScorer,
    TextEncoder,
    Trainable,
)
from chainrule.types.records import (
    Batch,
    Loss,
    OutputChoice,
    Outputs,
    Source,
    Vocabulary,
    WordVectors,
)
from chainrule.types.states import (
    State,
    TensorHolder,
    detach_state,
    map_state,
    select_rows,
)

__all__ = [
    "ArrayModel",
    "Batch",
    "ContextDepths",
    "LineScorer",
    "Loss",
    "Model",
    "Objective",
    "OutputChoice",
    "Outputs",
    "Preferences",
    "Scorer",
    "Source",
    "State",
    "Stepper",
    "SteppingModel",
    "StreamScorer",
    "TensorHolder",
    "TextEncoder",
    "Trainable",
    "Vocabulary",
    "WordVectors",
    "detach_state",
    "map_state",
    "select_rows",
]
