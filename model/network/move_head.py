"""Move features (engine.evaluation.move_features) as inputs of a network, and a score for each
legal move.

    `encode_features` -> `MoveFeatureStem`: added to the from- and to-square of a move, before the
    blocks
                      -> `MoveHead`: with the trunk's output on these two squares, added to the
                      move's logit

Axes: B batch, M legal moves of all rows, F features, K encoded numbers, C channels, Y row, X
column, S square of all boards, A index of the vocabulary (4096).
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.board.movegen import TYPES
from engine.encoding.planes import LABELS
from engine.evaluation.move_features import CHECK, LEAVES, RISKS, STANDS, TAKES, TARGET
from model.network.blocks import SQUARES, Float32
from model.network.preset import Preset

PIECE = 30
"""Smallest amount that is worth a minor piece, in tens of centipawns."""
SCALE = 50.0
"""Amount that is encoded as 1, in tens of centipawns."""
ENCODED = 3 * CHECK + 5


def encode_features(features_MF: Tensor) -> Tensor:
    """Return features as numbers near 1, float32 `[M, K]`: amounts, flags for above 0 and for a
    piece, comparisons.
    """
    amounts_MF = features_MF[:, :CHECK].float()
    takes, risks, leaves, stands, check = (
        features_MF[:, index] for index in (TAKES, RISKS, LEAVES, STANDS, CHECK)
    )
    flags = (takes > risks, takes < risks, leaves < stands, check > 0, check > 1)
    parts = (amounts_MF / SCALE, amounts_MF > 0, amounts_MF >= PIECE, torch.stack(flags, -1))
    return torch.cat([part.float() for part in parts], -1)


class Moves:
    """A batch's legal moves `[M]`: `places` in all logits, `rows`, `kinds`, squares on all boards;
    `features` `[M, K]`.
    """

    def __init__(self, read: Mapping[str, Tensor]) -> None:
        self.places = read["moves"]
        self.rows = self.places // LABELS
        boards_M = self.rows * SQUARES
        self.kinds = self.places % LABELS // SQUARES
        self.sources = boards_M + self.places % SQUARES
        self.targets = boards_M + read["move_features"][:, TARGET]
        self.features = encode_features(read["move_features"])


def _squares(board_BCYX: Tensor) -> Tensor:
    """Return the squares of all boards, `[B * S, C]`."""
    return board_BCYX.permute(0, 2, 3, 1).flatten(0, 2)


class MoveFeatureStem(nn.Module):
    """Add the features of the moves from and to each square to the stem's output."""

    def __init__(self, row: Preset) -> None:
        super().__init__()
        self.move_features = nn.Linear(ENCODED, 2 * row.width)
        self.kinds = nn.Embedding(TYPES, 2 * row.width)
        nn.init.normal_(self.kinds.weight, std=0.1)

    def forward(self, x_BCYX: Tensor, moves: Moves) -> Tensor:
        """Add to `[B, C, Y, X]`."""
        added_MC = F.relu(self.move_features(moves.features) + self.kinds(moves.kinds)).to(
            x_BCYX.dtype
        )
        squares_SC = _squares(x_BCYX)
        for chunk_MC, squares_M in zip(
            added_MC.chunk(2, 1), (moves.sources, moves.targets), strict=True
        ):
            squares_SC = squares_SC.index_add(0, squares_M, chunk_MC)
        return squares_SC.view(-1, *x_BCYX.shape[2:], x_BCYX.shape[1]).permute(0, 3, 1, 2)


class Comparison(nn.Module):
    """Rescore each legal move against the mean over its position's moves, weighted by the softmax
    of their first scores.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        last = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(last.weight)  # scores start as the first ones
        self.weight = Float32(last)

    def forward(self, hidden_MC: Tensor, scores_M: Tensor, rows_M: Tensor, rows: int) -> Tensor:
        """Return the amounts to add to the scores, `[M]`."""
        powers_M1 = scores_M.clamp(-20, 20).exp()[:, None]
        mean_BC = hidden_MC.new_zeros((rows, hidden_MC.shape[1]), dtype=torch.float32)
        mean_BC = mean_BC.index_add(0, rows_M, powers_M1 * hidden_MC)
        mean_BC = mean_BC / powers_M1.new_zeros((rows, 1)).index_add(0, rows_M, powers_M1).clamp(
            min=1e-9
        )
        return self.weight(F.relu(self.own(hidden_MC) + self.others(mean_BC)[rows_M])).squeeze(1)  # type: ignore[no-any-return]


class MoveHead(nn.Module):
    """Score each legal move by its features, its type and the trunk's output on its from- and
    to-square.
    """

    def __init__(self, row: Preset) -> None:
        super().__init__()
        self.sources, self.targets = (
            nn.Conv2d(row.width, row.move_features_width, 1, bias=False) for _ in range(2)
        )
        self.move_features = nn.Linear(ENCODED, row.move_features_width)
        self.kinds = nn.Embedding(TYPES, row.move_features_width)
        self.weight = Float32(nn.Linear(row.move_features_width, 1))
        nn.init.normal_(self.kinds.weight, std=0.1)
        self.compare = Comparison(row.move_features_width)

    def forward(self, logits_BA: Tensor, x_BCYX: Tensor, moves: Moves) -> Tensor:
        """Return logits `[B, A]` with each legal move's score added."""
        hidden_MC = (
            _squares(self.sources(x_BCYX))[moves.sources]
            + _squares(self.targets(x_BCYX))[moves.targets]
        )
        hidden_MC = F.relu(hidden_MC + self.move_features(moves.features) + self.kinds(moves.kinds))
        scores_M = self.weight(hidden_MC).squeeze(1)
        rows = logits_BA.shape[0]  # which an export keeps dynamic, unlike len()
        scores_M = scores_M + self.compare(hidden_MC, scores_M, moves.rows, rows)
        return logits_BA.flatten().index_add(0, moves.places, scores_M).view_as(logits_BA)
