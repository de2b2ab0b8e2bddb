"""From packed rows to what a network reads and is trained on, on the device that it trains on.

    rows in numpy -> `carry`: columns on the device, planes still packed -> `inputs_of`, `legal_of`, `target_of`

Each of the three takes a batch of rows or one that has been carried. Which columns a preset needs, `needs` says.

Axes: B batch, P plane, Y row, X column, A index of the move vocabulary, M legal move, F fact.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.encoding.move_vocabularies import NONE, Vocabulary, index_of, vocabulary
from engine.encoding.planes import TURN_PLANE
from engine.encoding.views import View, require, view
from engine.evaluation.move_features import facts_of
from model.data.planes import black, bytes_of, legal_mask, pictures, promoting, table, tensor, to_view
from model.network.conditioning import CONDITIONS, features, hide
from model.network.preset import Preset

Batch = Mapping[str, NDArray[Any]]
"""Columns of a shard by name; the planes are uint64 `[B, 77]` in the mover's view."""


@dataclass(frozen=True, eq=False, slots=True)
class Carried:
    """One batch on its device: planes as bytes `[B, 77, 8]` and the other columns `[B]`, in the mover's view.

    `moves` int64 `[M]` and `facts` uint8 `[M, F]` are of the legal moves of all rows, where the preset is told facts.
    """

    columns: Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """One batch on its device, in a preset's view and vocabulary."""

    read: Tensor | dict[str, Tensor]  # what the network is called with
    legal: Tensor  # [B, A] bool, True where legal
    labels: Tensor  # [B] int64, the move's index in the preset's vocabulary
    results: Tensor  # [B] int64, +1 / 0 / -1: the game's end for the mover
    plies_left: Tensor | None  # [B] float32, half-moves to the game's end; None for presets that do not ask

    @property
    def planes(self) -> Tensor:
        """The pictures `[B, P, Y, X]`, channels last."""
        return self.read if isinstance(self.read, Tensor) else self.read["planes"]


@dataclass(frozen=True, slots=True)
class _Reading:
    """What of a preset concerns inputs; a view alone reads no conditions and numbers moves by labels."""

    name: str
    view: View
    moves: Vocabulary
    conditions: tuple[str, ...]
    moves_left: bool
    facts: bool = False

    @property
    def hideable(self) -> tuple[str, ...]:
        """Name the columns that some rows are shown without in training."""
        return (*(("last_move",) if self.view.last else ()), *self.conditions)


@cache
def _reading(shown: Preset | View) -> _Reading:
    if isinstance(shown, View):
        return _Reading(f"the view {shown.name!r}", shown, vocabulary("marro4096"), (), False)
    conditions = CONDITIONS[shown.condition]
    return _Reading(
        f"the preset {shown.name!r}",
        view(shown.view),
        vocabulary(shown.moves),
        conditions,
        shown.moves_left > 0,
        shown.facts_width > 0,
    )


def reads(shown: Preset | View) -> tuple[str, ...]:
    """Name the columns that a network is shown, beside `planes`."""
    reading = _reading(shown)
    return (*reading.view.columns, *reading.conditions)


def needs(shown: Preset | View) -> tuple[str, ...]:
    """Name every column that training a preset needs, for whoever opens batches."""
    reading = _reading(shown)
    names = ["planes", "label", "result", *reads(shown)]
    names += ["promotion"] if reading.moves.under_promotions else []
    names += ["game", "ply"] if reading.hideable else []
    names += ["plies", "ply"] if reading.moves_left else []
    return tuple(dict.fromkeys(names))


def carry(batch: Batch, shown: Preset | View, device: torch.device) -> Carried:
    """Bring what a preset needs of a batch to the device; labels, results and lengths where the batch has them.

    Facts of moves are counted here. Raises PlanesError for rows that they cannot be counted of, MissingColumnError for a
    column that the preset reads and the batch has not, MoveIndexError for a label outside the preset's vocabulary.
    """
    reading = _reading(shown)
    require(reads(shown), batch, reading.name)
    carried = {"planes": bytes_of(batch["planes"])}
    for name in (*reads(shown), *(("game", "ply") if reading.hideable else ())):
        if name == "history":
            carried[name] = bytes_of(batch[name])
        elif name in batch:
            carried[name] = tensor(batch[name].astype(np.int64))
    if reading.facts:
        carried |= {name: tensor(column) for name, column in facts_of(batch["planes"]).items()}
    if "label" in batch:
        carried["target"] = tensor(_targets(reading, batch))
    if "result" in batch:
        carried["result"] = tensor(batch["result"].astype(np.int64))
    if reading.moves_left and "plies" in batch:
        require(("plies", "ply"), batch, reading.name)
        carried["plies_left"] = tensor(batch["plies"].astype(np.float32) - batch["ply"].astype(np.float32))
    return Carried({name: column.to(device, non_blocking=True) for name, column in carried.items()})


def _targets(reading: _Reading, batch: Batch) -> NDArray[np.int64]:
    """Number the rows' moves in the vocabulary, int64 `[B]`; under-promotions only where it tells them apart."""
    turned_B = (batch["planes"][:, TURN_PLANE] != 0) & reading.view.absolute
    promotions_B = np.zeros(len(turned_B), np.int64)
    if reading.moves.under_promotions:
        require(("promotion",), batch, reading.name)
        promotions_B = batch["promotion"].astype(np.int64)
    return index_of(reading.moves, turned_B, batch["label"], promotions_B)


def _columns(shown: Preset | View, batch: Batch | Carried) -> Mapping[str, Tensor]:
    return (batch if isinstance(batch, Carried) else carry(batch, shown, torch.device("cpu"))).columns


def inputs_of(
    shown: Preset | View, batch: Batch | Carried, dtype: torch.dtype, *, draw: int | None = None
) -> Tensor | dict[str, Tensor]:
    """Give what the network is called with: pictures `[B, P, Y, X]`, or a dict of `planes` and what else it is told.

    `draw` makes some rows' ratings, clocks and last moves unknown, for training: `model.network.conditioning.hide` says which.
    """
    reading, columns = _reading(shown), _columns(shown, batch)
    if draw is not None and reading.hideable:
        require(("game", "ply"), columns, reading.name)
        columns = hide(columns, reading.hideable, draw)
    pictures_BPYX = pictures(reading.view, columns, dtype)
    more = {"conditions": features(columns, reading.conditions)} if reading.conditions else {}
    more |= {name: columns[name] for name in ("moves", "facts") if reading.facts}
    return {"planes": pictures_BPYX, **more} if more else pictures_BPYX


def target_of(shown: Preset | View, batch: Batch | Carried) -> Tensor:
    """Give each row's move as an index of the preset's vocabulary, int64 `[B]`."""
    return _columns(shown, batch)["target"]


def legal_of(shown: Preset | View, batch: Batch | Carried) -> Tensor:
    """Tell which indices of the preset's vocabulary are legal moves, bool `[B, A]`."""
    reading, bytes_BPY = _reading(shown), _columns(shown, batch)["planes"]
    moves, device = reading.moves, bytes_BPY.device
    if moves.name == "marro4096" and reading.view.white_planes is None:  # the view's own move planes are the mask
        return legal_mask(to_view(reading.view, bytes_BPY))
    labels_A = table("labels", moves.name, device)
    mask_BA = legal_mask(bytes_BPY)[:, labels_A.clamp(min=0)] & (labels_A != NONE)
    if moves.under_promotions:
        mask_BA &= promoting(bytes_BPY, labels_A) | (table("promotions", moves.name, device) == 0)
    if reading.view.absolute:
        mask_BA = torch.where(black(bytes_BPY)[:, None], mask_BA[:, table("turned", moves.name, device)], mask_BA)
    return mask_BA


def inputs(
    batch: Batch, shown: Preset | View, device: torch.device, dtype: torch.dtype, *, draw: int | None = None
) -> Inputs:
    """Carry a batch to the device, into a preset's view and vocabulary, and unpack it there."""
    require(needs(shown), batch, _reading(shown).name)
    carried = carry(batch, shown, device)
    return Inputs(
        read=inputs_of(shown, carried, dtype, draw=draw),
        legal=legal_of(shown, carried),
        labels=carried.columns["target"],
        results=carried.columns["result"],
        plies_left=carried.columns.get("plies_left"),
    )
