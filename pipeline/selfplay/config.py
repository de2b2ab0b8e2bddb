"""How the data of a generation are made: games that a player plays against itself, or searches of a
dataset's positions.
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
VAL_SHARE = 0.05
"""Share of games held out for validation, by a hash of their moves."""


class ExploreError(UserError):
    """Self-play cannot be started, continued or finished; finished work is kept."""


def _search() -> SearchConfig:
    # A policy that is to be learned must not be flattened, or each generation is flatter than the
    # last. Judged by Stockfish, 16 simulations on 8 moves teach more than 32 on 16 by mctx's weight
    # of values, for half the work (docs/findings.md).
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
    """Settings of a generation of self-play, recorded in the manifest."""

    games: Positive = 1000
    """Games to play."""
    count: Positive = 20_000
    """Positions to search (people and near)."""
    source: SourceName = "games"
    """Positions to search: of own games, of people's games, or one to four random moves off
    people's."""
    explorer: Literal["network", "hand-written"] = "network"
    """Player that searches: the checkpoint, or the hand-written one."""
    search: SearchConfig = field(default_factory=_search)
    """How each move or position is searched; positions without noise."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Random seed of games, searches and drawn positions."""
    device: Literal["auto", "cpu", "cuda", "onnx"] = "auto"
    """Device of the network. onnx runs the checkpoint's model.onnx on the CPU, fastest when
    exported with `--int8`; a fine-tune exports its networks itself."""
    sampled_plies: int = 8
    """Maximum number of opening half-moves sampled from the policy without search; each game draws
    its own number."""
    resign: float = 0.95
    """Threshold from 0 to 1: a player resigns when its values stay below minus this threshold; 0
    never resigns."""
    draw_penalty: Share = 0.0
    """Penalty of a draw: it is subtracted from the values of a drawn game's rows, for both
    sides."""

    @property
    def uses_network(self) -> bool:
        """Return whether a checkpoint is needed."""
        return self.explorer != "hand-written"

    @property
    def plays(self) -> bool:
        """Return whether games are played, and not positions searched."""
        return self.source == "games"

    def ingest(self) -> IngestConfig:
        """Return the settings that rows are made with; searched positions stay in train."""
        if self.plays:
            return IngestConfig(test_share=0.0, val_share=VAL_SHARE, seed=self.seed, chunk_mib=8)
        return IngestConfig(planes="compact", seed=self.seed)
