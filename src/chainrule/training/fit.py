"""From a configuration to a trained run; all of `chainrule train`. The same call again resumes."""

from __future__ import annotations

from pathlib import Path

import torch

from chainrule.base.devices import physical_cores
from chainrule.base.processes import Processes
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.tasks.task import task_of
from chainrule.training.checks import check_options
from chainrule.training.fitting.fitting import Fitted, Job, TrainingListener, budget_of, fitting_of
from chainrule.training.resume import check_same_data, check_same_request, request_of


def fit(config: RunConfig, out: str | Path, listener: TrainingListener | None = None) -> Fitted:
    """Train what `config` describes into the folder `out`, or resume it, or find it finished."""
    listener, folder, processes = listener or TrainingListener(), RunFolder(out), Processes.join()
    request = request_of(config)
    check_same_request(folder, request)
    fitting = fitting_of(config.model.name)
    result = folder.read_result()
    if result and (result["budget"] == budget_of(config) if fitting.extends else folder.has_model()):
        more = ", or give a larger budget to train longer" if fitting.extends else ""
        listener.note(f"{out} is already finished; choose another --out{more}")
        return Fitted(folder, True, result)
    task = task_of(config)
    check_options(config, task, fitting)
    config = fitting.prepare(config, task, folder, listener.note)
    torch.set_num_threads(config.training.threads or physical_cores())
    with processes.main_first():
        corpus = task.open(config, folder, listener)
    check_same_data(folder, corpus)
    return fitting.fit(Job(config, task, corpus, folder, request, listener, processes))
