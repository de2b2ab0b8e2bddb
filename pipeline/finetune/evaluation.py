"""EVAL: how well a network still predicts people's moves."""

from typing import Any

import numpy as np

from engine.progress import Progress, Stop
from pipeline.dataset.dataset import Dataset
from pipeline.errors import Stopped
from pipeline.evaluation.render import write_report
from pipeline.evaluation.report import Rule, report
from pipeline.finetune.state import StageContext

POSITIONS = 16_384
"""Maximum number of human positions that are measured, over all datasets."""
FIGURES = ("top1", "top3", "cross_entropy", "value_brier")
"""Figures of a report that are averaged over the datasets, weighted by positions."""


def eval_stage(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """EVAL: return the candidate's figures on human test positions, {} without any.

    Each dataset has a report in `eval/`; those of engines' moves are left out. The same positions
    are measured for every candidate. Raises Stopped, and what `report` raises.
    """
    opened = [Dataset.open(path) for path in context.human]
    measured = [one.path for one in opened if one.has("test") and not one.has_engine_moves]
    if not measured:
        return {}
    limit, reports = max(1, POSITIONS // len(measured)), []
    for directory in measured:
        if stop():
            raise Stopped("stopped while measuring")
        result = report(
            context.candidate, positions=directory, rule=Rule(limit=limit), progress=progress
        )
        write_report(result, context.folder / "eval" / directory.resolve().name)
        reports.append(result)
    found: dict[str, Any] = {"positions": sum(result["positions"] for result in reports)}
    for name in FIGURES:
        known = [
            (result[name], result["positions"]) for result in reports if result[name] is not None
        ]
        if known:
            found[name] = round(
                float(
                    np.average([value for value, _ in known], weights=[rows for _, rows in known])
                ),
                6,
            )
    return found
