"""The Python interface of KenLM: `import chainrule.kenlm as kenlm`."""

from __future__ import annotations

from chainrule.interop.kenlm import ARPALoadComplain as ARPALoadComplain
from chainrule.interop.kenlm import Config as Config
from chainrule.interop.kenlm import FullScoreReturn as FullScoreReturn
from chainrule.interop.kenlm import LanguageModel as LanguageModel
from chainrule.interop.kenlm import LoadMethod as LoadMethod
from chainrule.interop.kenlm import Model as Model
from chainrule.interop.kenlm import State as State
