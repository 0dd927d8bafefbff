"""MLflow: parameters and metrics of runs, in ./mlruns or where MLFLOW_TRACKING_URI says."""

from __future__ import annotations

from chainrule.training.trackers.tracker import PROJECT, TrackedRun, Tracker

MOST_PARAMETERS = 100
"""Parameters that MLflow takes in one call."""

LONGEST = 500
"""Characters of a parameter that MLflow takes."""


class MLflow(Tracker):
    """Runs of MLflow, continued by their ids."""

    name = "mlflow"
    package = "mlflow"

    def open(self, run: TrackedRun) -> str | None:
        mlflow = self.load()
        mlflow.set_experiment(PROJECT)
        key: str = mlflow.start_run(run_id=run.key, run_name=run.name).info.run_id
        if run.key is None:  # parameters of a run cannot be changed
            items = [(name, str(value)[:LONGEST]) for name, value in run.flat_options().items()]
            for begin in range(0, len(items), MOST_PARAMETERS):
                mlflow.log_params(dict(items[begin : begin + MOST_PARAMETERS]))
        return key

    def log(self, figures: dict[str, float], step: int) -> None:
        self.load().log_metrics(figures, step=step)

    def close(self) -> None:
        self.load().end_run()
