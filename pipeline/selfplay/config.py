"""Settings of a generation: games of a player against itself, or searches of dataset positions."""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from engine.errors import UserError
from engine.search import SearchConfig
from engine.selfplay.generate import SelfPlayConfig
from model.settings import Positive, Share, settings
from pipeline.ingest.chunk import IngestConfig

SourceName = Literal["games", "people", "near"]
"""Source of the searched positions, see ExploreConfig.source."""
ONNX_DEVICE: Literal["onnx"] = "onnx"
"""Value of `device` for onnxruntime, which runs the model.onnx in the checkpoint's folder."""
VALIDATION_SHARE = 0.05
"""Share of self-play games held out for validation, chosen by a hash of their moves."""


class ExploreError(UserError):
    """Self-play cannot start, resume or finish; finished work is kept."""


def _default_search() -> SearchConfig:
    # Temperature 1, because a flattened training target makes each generation's policy flatter than
    # the last. Compared with Stockfish, searches of 8 moves with 16 simulations give better targets
    # than searches of 16 moves with 32 simulations and mctx's value scale (docs/findings.md).
    return SearchConfig(
        algorithm="gumbel",
        simulations=16,
        max_considered_actions=8,
        policy_temperature=1.0,
        value_scale=1.0,
        rescale_values=False,
    )


@settings(ExploreError)
class ExploreConfig(SelfPlayConfig):
    """Settings of a generation, recorded in the manifest."""

    games: Positive = 1000
    """Games to play, with source=games."""
    count: Positive = 20_000
    """Positions to search, with source=people or near."""
    source: SourceName = "games"
    """Positions to search: those of self-play games (games), of human games (people), or up to four
    random moves from human games (near). `finetune` sets it by games_share and near_share."""
    explorer: Literal["network", "hand-written"] = "network"
    """Player whose search is used: the checkpoint's network, or the hand-written player."""
    search: SearchConfig = field(default_factory=_default_search)
    """Search settings for each move or position. Noise is added in games only."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Random seed of games, searches and the choice of positions."""
    device: Literal["auto", "cpu", "cuda", "onnx"] = "auto"
    """Device of the network. onnx runs the checkpoint's model.onnx on the CPU, which is fastest if
    it was exported with `--int8`; `finetune` exports its networks itself."""
    sampled_plies: int = 8
    """Maximum number of half-moves at the start of a game that are sampled from the policy without
    search; each game draws its number up to this maximum."""
    resign: float = 0.95
    """A player resigns when its value is below minus this threshold at two of its moves in a row; 0
    disables this. Nobody resigns in the first 20 half-moves, or in a tenth of the games."""
    draw_penalty: Share = 0.0
    """Amount subtracted from the search's values in the rows of drawn games, for both sides."""

    @property
    def uses_network(self) -> bool:
        """Whether a network searches, so that a checkpoint is needed."""
        return self.explorer != "hand-written"

    @property
    def plays_games(self) -> bool:
        """Whether games are played; otherwise positions of datasets are searched."""
        return self.source == "games"

    def make_ingest_config(self) -> IngestConfig:
        """Return the settings for writing rows; only games have a validation split."""
        if self.plays_games:
            return IngestConfig(
                test_share=0.0, val_share=VALIDATION_SHARE, seed=self.seed, chunk_mib=8
            )
        return IngestConfig(planes="compact", seed=self.seed)
