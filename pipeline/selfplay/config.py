"""Settings of a self-play generation: games of a player against itself, or searches of positions of
datasets.
"""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from engine.errors import UserError
from engine.search import SearchConfig
from engine.selfplay.generate import SelfPlayConfig
from model.settings import Positive, Share, settings
from pipeline.ingest.chunk import IngestConfig

SourceName = Literal["games", "people", "near"]
ONNX_DEVICE: Literal["onnx"] = "onnx"
"""Device name for onnxruntime, which runs the model.onnx beside the checkpoint's card."""
VALIDATION_SHARE = 0.05
"""Share of games held out for validation, chosen by a hash of their moves."""


class ExploreError(UserError):
    """Self-play cannot start, resume or finish; finished work is kept."""


def _default_search() -> SearchConfig:
    # Temperature 1, because a flattened training target makes each generation flatter than the
    # last. Measured with Stockfish, 16 simulations of 8 moves give better targets than 32 of 16
    # with mctx's value scale, at half the cost (docs/findings.md).
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
    """Settings of a self-play generation, recorded in the manifest."""

    games: Positive = 1000
    """Games to play."""
    count: Positive = 20_000
    """Positions to search (sources people and near)."""
    source: SourceName = "games"
    """Positions to search: from self-play games (games), from human games (people), or one to four
    random moves away from human games (near)."""
    explorer: Literal["network", "hand-written"] = "network"
    """Player that searches: the checkpoint's network, or the hand-written player."""
    search: SearchConfig = field(default_factory=_default_search)
    """Search settings for each move or position; positions of datasets are searched without
    noise."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Random seed of games, searches and the choice of positions."""
    device: Literal["auto", "cpu", "cuda", "onnx"] = "auto"
    """Device of the network. onnx runs the checkpoint's model.onnx on the CPU, fastest when
    exported with `--int8`; `finetune` exports its networks itself."""
    sampled_plies: int = 8
    """Maximum number of opening half-moves sampled from the policy without search; each game draws
    a random number up to this."""
    resign: float = 0.95
    """Resignation threshold from 0 to 1: a player resigns when its values stay below minus this; 0
    never resigns."""
    draw_penalty: Share = 0.0
    """Amount subtracted from the values in a drawn game's rows, for both sides."""

    @property
    def uses_network(self) -> bool:
        """Return whether a checkpoint is needed."""
        return self.explorer != "hand-written"

    @property
    def plays_games(self) -> bool:
        """Return whether games are played, rather than positions searched."""
        return self.source == "games"

    def ingest(self) -> IngestConfig:
        """Return the settings for writing rows; all searched positions go to the train split."""
        if self.plays_games:
            return IngestConfig(
                test_share=0.0, val_share=VALIDATION_SHARE, seed=self.seed, chunk_mib=8
            )
        return IngestConfig(planes="compact", seed=self.seed)
