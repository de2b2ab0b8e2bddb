"""Columns, batching and output checks shared by the torch and ONNX evaluators, without torch.

Each column that a network reads is taken from the first available source: the call's arguments;
inference from the planes (engine/encoding/inferred.py); the evaluator's default.

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

Rows = dict[str, NDArray[Any]]
Corrections = dict[Aim, Correction]
"""Search corrections of a policy by aim; empty for a network that was not calibrated."""
Answer = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Policy logits by label, float32 `[B, 4096]`, and win, draw, loss, float32 `[B, 3]`, both for the
side to move."""

MAX_BATCH_ROWS = 2048
"""Maximum rows of one batch, to bound memory."""


class AnswerError(UserError):
    """A network's output is not finite or has the wrong shape."""


def fill_columns(
    planes_BP: NDArray[np.uint64], given: Mapping[str, NDArray[Any]], defaults: Mapping[str, int]
) -> Rows:
    """Return `planes` and the columns of `defaults`, each from its first available source."""
    rows: Rows = {"planes": planes_BP}
    if any(name in INFERRED_COLUMNS and name not in given for name in defaults):
        given = infer_columns(planes_BP) | dict(given)
    for name, default in defaults.items():
        if name in given:
            rows[name] = given[name]
        else:
            rows[name] = np.full(len(planes_BP), default, dtype=np.int64)
    return rows


def evaluate_in_batches(evaluate: Callable[[Rows], Answer], rows: Rows, name: str) -> Answer:
    """Evaluate rows in batches of at most MAX_BATCH_ROWS; errors use the network's `name`."""
    answers = []
    for start in range(0, len(rows["planes"]), MAX_BATCH_ROWS):
        batch = {column: values[start : start + MAX_BATCH_ROWS] for column, values in rows.items()}
        answers.append(evaluate(batch))
        check_answer(answers[-1], batch["planes"], name)
    if len(answers) == 1:
        return answers[0]
    nothing = np.empty((0, LABELS), np.float32), np.empty((0, 3), np.float32)
    logits, wdl = zip(nothing, *answers, strict=True)
    return np.concatenate(logits), np.concatenate(wdl)


def check_answer(answer: Answer, planes_BP: NDArray[np.uint64], name: str) -> None:
    """Raise AnswerError for wrong shapes or non-finite values; illegal moves may have -inf."""
    logits_BL, wdl_B3 = answer
    if logits_BL.shape != (len(planes_BP), LABELS) or wdl_B3.shape != (len(planes_BP), 3):
        raise AnswerError(
            f"{name} returned shapes {logits_BL.shape} and {wdl_B3.shape}, but must return "
            f"{len(planes_BP), LABELS} and {len(planes_BP), 3}: export it again"
        )
    finite_BL = np.isfinite(logits_BL)
    if not finite_BL.all():  # rare: most networks have finite logits for illegal moves too
        finite_BL |= np.isneginf(logits_BL) & ~legal_mask(planes_BP)
    if not (finite_BL.all() and np.isfinite(wdl_B3).all()):
        raise AnswerError(
            f"{name} returned NaN or infinity: training diverged, or the file is damaged; "
            f"train it or copy it again"
        )


def read_corrections(path: Path, card: Mapping[str, Any], refusal: type[UserError]) -> Corrections:
    """Return the search corrections in the card at `path`; raise `refusal` for an invalid entry."""
    entry = card.get("human_search")
    if entry is None:
        return {}
    validate_content(path, entry, HumanSearch, refusal)
    aims: tuple[Aim, ...] = ("likelihood", "strength")
    return {aim: Correction(**entry[aim], simulations=entry["simulations"]) for aim in aims}
