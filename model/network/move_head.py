"""Move features (engine.evaluation.move_features) as inputs of a network, and a logit for each legal move.

    `encode_features` -> `MoveFeatureStem`: added to the squares that a move leaves and reaches, before the blocks
                      -> `MoveHead`: with the trunk's output on these two squares, added to the move's own logit

Axes: B batch, M legal moves of all rows, F features, K encoded numbers, C channels, Y row, X column, S square of all boards,
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
ENCODED = 3 * CHECK + 5


def encode_features(features_MF: Tensor) -> Tensor:
    """Return features as numbers near 1, float32 `[M, K]`: amounts, which are above 0, which are a piece's, comparisons."""
    amounts_MF = features_MF[:, :CHECK].float()
    takes, risks, leaves, stands, check = (features_MF[:, index] for index in (TAKES, RISKS, LEAVES, STANDS, CHECK))
    flags = (takes > risks, takes < risks, leaves < stands, check > 0, check > 1)
    parts = (amounts_MF / SCALE, amounts_MF > 0, amounts_MF >= PIECE, torch.stack(flags, -1))
    return torch.cat([part.float() for part in parts], -1)


class Moves:
    """A batch's legal moves `[M]`: `places` in all logits, `rows`, `kinds`, squares on all boards; `features` `[M, K]`."""

    def __init__(self, read: Mapping[str, Tensor]) -> None:
        self.places = read["moves"]
        self.rows = self.places // LABELS
        boards_M = self.rows * SQUARES
        self.kinds = self.places % LABELS // SQUARES
        self.sources = boards_M + self.places % SQUARES
        self.targets = boards_M + read["facts"][:, TARGET]
        self.features = encode_features(read["facts"])


def _squares(board_BCYX: Tensor) -> Tensor:
    """Lay all boards' squares in a row, `[B * S, C]`."""
    return board_BCYX.permute(0, 2, 3, 1).flatten(0, 2)


class MoveFeatureStem(nn.Module):
    """Add to each square of the stem's output the features of the moves from it and to it."""

    def __init__(self, row: Preset) -> None:
        super().__init__()
        self.facts = nn.Linear(ENCODED, 2 * row.width)
        self.kinds = nn.Embedding(TYPES, 2 * row.width)
        nn.init.normal_(self.kinds.weight, std=0.1)

    def forward(self, x_BCYX: Tensor, moves: Moves) -> Tensor:
        """Add to `[B, C, Y, X]`."""
        added_MC = F.relu(self.facts(moves.features) + self.kinds(moves.kinds)).to(x_BCYX.dtype)
        squares_SC = _squares(x_BCYX)
        for chunk_MC, squares_M in zip(added_MC.chunk(2, 1), (moves.sources, moves.targets), strict=True):
            squares_SC = squares_SC.index_add(0, squares_M, chunk_MC)
        return squares_SC.view(-1, *x_BCYX.shape[2:], x_BCYX.shape[1]).permute(0, 3, 1, 2)


class Comparison(nn.Module):
    """Score each legal move again, shown what is liked in its position: the moves' mean, weighted by their first scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        last = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(last.weight)  # the scores begin as the first ones
        self.weight = Exact(last)

    def forward(self, hidden_MC: Tensor, scores_M: Tensor, rows_M: Tensor, rows: int) -> Tensor:
        """Return what is added to the scores, `[M]`."""
        powers_M1 = scores_M.clamp(-20, 20).exp()[:, None]
        liked_BC = hidden_MC.new_zeros((rows, hidden_MC.shape[1]), dtype=torch.float32)
        liked_BC = liked_BC.index_add(0, rows_M, powers_M1 * hidden_MC)
        liked_BC = liked_BC / powers_M1.new_zeros((rows, 1)).index_add(0, rows_M, powers_M1).clamp(min=1e-9)
        return self.weight(F.relu(self.own(hidden_MC) + self.others(liked_BC)[rows_M])).squeeze(1)  # type: ignore[no-any-return]


class MoveHead(nn.Module):
    """Score each legal move by its features, its kind and the trunk's output on the squares it leaves and reaches."""

    def __init__(self, row: Preset) -> None:
        super().__init__()
        self.sources, self.targets = (nn.Conv2d(row.width, row.facts_width, 1, bias=False) for _ in range(2))
        self.facts = nn.Linear(ENCODED, row.facts_width)
        self.kinds = nn.Embedding(TYPES, row.facts_width)
        self.weight = Exact(nn.Linear(row.facts_width, 1))
        nn.init.normal_(self.kinds.weight, std=0.1)
        self.compare = Comparison(row.facts_width) if row.facts_layers == 2 else None

    def forward(self, logits_BA: Tensor, x_BCYX: Tensor, moves: Moves) -> Tensor:
        """Return logits `[B, A]` with each legal move's score added."""
        hidden_MC = _squares(self.sources(x_BCYX))[moves.sources] + _squares(self.targets(x_BCYX))[moves.targets]
        hidden_MC = F.relu(hidden_MC + self.facts(moves.features) + self.kinds(moves.kinds))
        scores_M = self.weight(hidden_MC).squeeze(1)
        if self.compare:
            rows = logits_BA.shape[0]  # an export keeps it open, and would fix what len() says
            scores_M = scores_M + self.compare(hidden_MC, scores_M, moves.rows, rows)
        return logits_BA.flatten().index_add(0, moves.places, scores_M).view_as(logits_BA)
