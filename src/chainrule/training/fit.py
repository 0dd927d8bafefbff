"""From a configuration to a trained run; all of `chainrule train`. The same call again resumes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from chainrule.base.devices import physical_cores
from chainrule.base.locks import refuse_if_locked
from chainrule.base.processes import Processes, lost_processes
from chainrule.base.targets import check_folder
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.tasks.task import task_of
from chainrule.training.checks import check_options
from chainrule.training.fitting.fitting import Fitted, Job, TrainingListener, fitting_of, is_spent
from chainrule.training.resume import check_same_data, check_same_request, request_of

Check = Callable[[RunConfig], None]
"""Refuses options."""


@lost_processes()
def fit(
    config: RunConfig, out: str | Path, listener: TrainingListener | None = None, check: Check | None = None
) -> Fitted:
    """Train what `config` describes into the folder `out`, or resume it, or find it finished.

    `check` sees the options once the tokeniser is chosen, before the first step.
    """
    listener, folder, processes = listener or TrainingListener(), RunFolder(out), Processes.join()
    request = request_of(config)
    check_folder(folder.path, folder.begun)
    task, fitting = task_of(config), fitting_of(config.model.name)
    check_options(config, task, fitting)  # first, so that a misspelt option is not taken for another one
    if processes.world > 1 and not fitting.distributed:
        raise ConfigError(
            f"{config.model.name} is trained by one process, but torchrun started {processes.world}; run chainrule "
            "train without torchrun: it uses all cores of the machine"
        )
    check_same_request(folder, config)
    result = folder.read_result()
    if result and folder.has_model() and (not fitting.extends or is_spent(result, config)):
        more = ", or give a larger budget to train longer" if fitting.extends else ""
        listener.note(f"{out} is already finished; choose another --out{more}")
        return Fitted(folder, True, result)
    if processes.is_main:  # the others only read
        refuse_if_locked(folder.lock_path, folder.path)
    config = fitting.prepare(config, task, folder, listener.note)
    torch.set_num_threads(config.training.threads or physical_cores())
    with processes.main_first():
        corpus = task.open(config, folder, listener)
    check_same_data(folder, corpus)
    if check is not None:
        check(config.model_copy(update={"tokenizer": corpus.tokenizer_config}))
    if (validation := corpus.validation_data) is not None and processes.is_main:
        listener.note(str(validation))
    with ExitStack() as held:
        return fitting.fit(Job(config, task, corpus, folder, request, listener, processes, held))
