"""Columns, batching and output checks shared by the torch and ONNX evaluators, without torch.

Each column that a network reads comes from the first available source: the call's arguments, the
planes, from which some columns can be inferred (engine/encoding/inferred.py), and last the
evaluator's default.

Axes: B batch, P plane (77), L label (4096).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.inferred import INFERRED_COLUMNS, infer_columns
from engine.encoding.planes import LABELS, legal_mask
from engine.errors import UserError
from engine.json_files import validate_content
from engine.search.human import Aim, Correction
from model.card import HumanSearch

Columns = dict[str, NDArray[Any]]
Corrections = dict[Aim, Correction]
"""Search corrections of a policy by aim; empty for a network that was not calibrated."""
Outputs = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Policy logits by label, float32 `[B, 4096]`, and win, draw, loss, float32 `[B, 3]`, both for the
side to move."""

MAX_BATCH_ROWS = 2048
"""Maximum rows of one batch, to bound memory."""


class NetworkOutputError(UserError):
    """A network's output is not finite or has the wrong shape."""


def fill_columns(
    planes_BP: NDArray[np.uint64], given: Mapping[str, NDArray[Any]], defaults: Mapping[str, int]
) -> Columns:
    """Return `planes` and the columns of `defaults`, each from its first available source."""
    if any(name in INFERRED_COLUMNS and name not in given for name in defaults):
        given = infer_columns(planes_BP) | dict(given)
    columns: Columns = {"planes": planes_BP}
    for name, default in defaults.items():
        if name in given:
            columns[name] = given[name]
        else:
            columns[name] = np.full(len(planes_BP), default, dtype=np.int64)
    return columns


def evaluate_in_batches(
    evaluate: Callable[[Columns], Outputs], rows: Columns, network: str
) -> Outputs:
    """Evaluate rows in batches of at most MAX_BATCH_ROWS; `network` is the name used in errors."""
    outputs = []
    for start in range(0, len(rows["planes"]), MAX_BATCH_ROWS):
        batch = {column: values[start : start + MAX_BATCH_ROWS] for column, values in rows.items()}
        outputs.append(evaluate(batch))
        check_outputs(outputs[-1], batch["planes"], network)
    if len(outputs) == 1:
        return outputs[0]
    no_rows = np.empty((0, LABELS), np.float32), np.empty((0, 3), np.float32)
    logits, wdl = zip(no_rows, *outputs, strict=True)
    return np.concatenate(logits), np.concatenate(wdl)


def check_outputs(outputs: Outputs, planes_BP: NDArray[np.uint64], network: str) -> None:
    """Raise NetworkOutputError for a wrong shape, NaN or infinity; illegal moves may have -inf."""
    logits_BL, wdl_B3 = outputs
    if logits_BL.shape != (len(planes_BP), LABELS) or wdl_B3.shape != (len(planes_BP), 3):
        raise NetworkOutputError(
            f"{network} returned shapes {logits_BL.shape} and {wdl_B3.shape}, but must return "
            f"{len(planes_BP), LABELS} and {len(planes_BP), 3}: export it again"
        )
    finite_BL = np.isfinite(logits_BL)
    if not finite_BL.all():  # rare: most networks have finite logits for illegal moves too
        finite_BL |= np.isneginf(logits_BL) & ~legal_mask(planes_BP)
    if not (finite_BL.all() and np.isfinite(wdl_B3).all()):
        raise NetworkOutputError(
            f"{network} returned NaN or infinity: training diverged, or the file is damaged; "
            "train it or copy it again"
        )


def read_corrections(
    path: Path, card: Mapping[str, Any], error_type: type[UserError]
) -> Corrections:
    """Return the search corrections of the card at `path`; raise `error_type` if invalid."""
    entry = card.get("human_search")
    if entry is None:
        return {}
    validate_content(path, entry, HumanSearch, error_type)
    aims: tuple[Aim, ...] = ("likelihood", "strength")
    return {aim: Correction(**entry[aim], simulations=entry["simulations"]) for aim in aims}
