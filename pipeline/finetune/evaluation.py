"""EVAL: how well a network still predicts people's moves."""

from typing import Any

import numpy as np

from engine.progress import Progress, Stop
from pipeline.dataset.files.shards import read_manifest
from pipeline.errors import Stopped
from pipeline.evaluation.render import write_report
from pipeline.evaluation.report import Rule, report
from pipeline.finetune.state import StageContext

POSITIONS = 16_384
"""Maximum number of human positions that are measured, over all datasets."""
FIGURES = ("top1", "top3", "cross_entropy", "value_brier")
"""Figures of a report that are averaged over the datasets, weighted by positions."""


def eval_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """EVAL: return the candidate's figures on the test positions of the human datasets, {} without any.

    Each dataset has a report in `eval/`. The same positions are measured for every candidate. Raises Stopped, and what
    `report` raises.
    """
    measured = [directory for directory in context.human if read_manifest(directory)["positions"].get("test", 0) > 0]
    if not measured:
        return {}
    limit, reports = max(1, POSITIONS // len(measured)), []
    for directory in measured:
        if stop():
            raise Stopped("stopped while measuring")
        result = report(context.candidate, positions=directory, rule=Rule(limit=limit), progress=progress)
        write_report(result, context.folder / "eval" / directory.resolve().name)
        reports.append(result)
    weights = [result["positions"] for result in reports]
    means = {name: float(np.average([result[name] for result in reports], weights=weights)) for name in FIGURES}
    return {"positions": sum(weights)} | {name: round(value, 6) for name, value in means.items()}
