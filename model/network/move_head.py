"""Moves weighed one by one: what each legal move's facts (engine.evaluation.move_features) tell a network, and where it
is told.

    labels and facts of the legal moves -> `known`: numbers -> `FactsStem`: onto the squares that a move leaves and reaches,
    before the blocks; and `MoveHead`: with what the trunk says of these two squares, onto the move's own logit

Axes: B batch, M legal moves of all rows, F facts, K known numbers, C channels, Y row, X column, S square of all boards,
A index of the vocabulary (4096).
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.board.movegen import TYPES
from engine.encoding.planes import LABELS
from engine.evaluation.move_features import CHECK, LEAVES, RISKS, STANDS, TAKES, TARGET
from model.network.blocks import SQUARES, Exact
from model.network.preset import Preset

PIECE = 30
"""Tens of centipawns from which an amount is at least a minor piece."""
SCALE = 50.0
"""Tens of centipawns that are written as 1."""
KNOWN = 3 * CHECK + 5


def known(facts_MF: Tensor) -> Tensor:
    """Write facts as numbers near 1, float32 `[M, K]`: amounts, whether they are anything, whether they are a piece."""
    amounts_MF = facts_MF[:, :CHECK].float()
    takes, risks, leaves, stands, check = (facts_MF[:, fact] for fact in (TAKES, RISKS, LEAVES, STANDS, CHECK))
    flags = (takes > risks, takes < risks, leaves < stands, check > 0, check > 1)
    parts = (amounts_MF / SCALE, amounts_MF > 0, amounts_MF >= PIECE, torch.stack(flags, -1))
    return torch.cat([part.float() for part in parts], -1)


class Moves:
    """A batch's legal moves `[M]`: `places` in all logits, `kinds`, squares on all boards, and what is `known` `[M, K]`."""

    def __init__(self, read: Mapping[str, Tensor]) -> None:
        self.places = read["moves"]
        boards_M = self.places // LABELS * SQUARES
        self.kinds = self.places % LABELS // SQUARES
        self.sources = boards_M + self.places % SQUARES
        self.targets = boards_M + read["facts"][:, TARGET]
        self.known = known(read["facts"])


def _squares(board_BCYX: Tensor) -> Tensor:
    """Lay all boards' squares in a row, `[B * S, C]`."""
    return board_BCYX.permute(0, 2, 3, 1).flatten(0, 2)


class FactsStem(nn.Module):
    """Tell each square what the moves from it and to it win, risk, leave and threaten: added to what the stem says."""

    def __init__(self, row: Preset) -> None:
        super().__init__()
        self.facts = nn.Linear(KNOWN, 2 * row.width)
        self.kinds = nn.Embedding(TYPES, 2 * row.width)
        nn.init.normal_(self.kinds.weight, std=0.1)

    def forward(self, x_BCYX: Tensor, moves: Moves) -> Tensor:
        """Add to `[B, C, Y, X]`."""
        told_MC = F.relu(self.facts(moves.known) + self.kinds(moves.kinds)).to(x_BCYX.dtype)
        squares_SC = _squares(x_BCYX)
        for part_MC, squares_M in zip(told_MC.chunk(2, 1), (moves.sources, moves.targets), strict=True):
            squares_SC = squares_SC.index_add(0, squares_M, part_MC)
        return squares_SC.view(-1, *x_BCYX.shape[2:], x_BCYX.shape[1]).permute(0, 3, 1, 2)


class MoveHead(nn.Module):
    """Weigh each legal move by its facts, its kind and what the trunk says of the squares it leaves and reaches."""

    def __init__(self, row: Preset) -> None:
        super().__init__()
        self.sources, self.targets = (nn.Conv2d(row.width, row.facts_width, 1, bias=False) for _ in range(2))
        self.facts = nn.Linear(KNOWN, row.facts_width)
        self.kinds = nn.Embedding(TYPES, row.facts_width)
        self.weight = Exact(nn.Linear(row.facts_width, 1))
        nn.init.normal_(self.kinds.weight, std=0.1)

    def forward(self, logits_BA: Tensor, x_BCYX: Tensor, moves: Moves) -> Tensor:
        """Add each legal move's weight to its logit, `[B, A]`."""
        hidden_MC = _squares(self.sources(x_BCYX))[moves.sources] + _squares(self.targets(x_BCYX))[moves.targets]
        hidden_MC = F.relu(hidden_MC + self.facts(moves.known) + self.kinds(moves.kinds))
        weights_M = self.weight(hidden_MC).squeeze(1)
        return logits_BA.flatten().index_add(0, moves.places, weights_M).view_as(logits_BA)
