"""Settings of the fine-tuning loop. Imports little: the command line and the launchpad make their
forms from it.
"""

from dataclasses import field, replace
from typing import Annotated

from pydantic import Field

from engine.match.sprt import SprtConfig
from model.settings import Count, Positive, Share, settings
from model.training.config import TrainConfig
from pipeline.errors import ConfigError
from pipeline.selfplay.config import ExploreConfig, SourceName

MOST_USES = 1_000_000
"""Largest value of `most_uses`."""
SMALLEST_SHARE = 1e-6
"""Share of a source below which it is left out: shares are sums of fractions."""
Games = Annotated[int, Field(ge=2, multiple_of=2)]
"""Games come in pairs, one with each color."""


def _explore() -> ExploreConfig:
    # four times the simulations of a match: 16 weakened the network (docs/findings.md)
    search = replace(ExploreConfig().search, simulations=256, max_considered_actions=16)
    return ExploreConfig(games=4000, count=48_000, search=search)


def default_training() -> TrainConfig:
    """Return the default settings of a generation's training."""
    return TrainConfig(
        epochs=1.6,
        learning_rate=7e-4,
        warmup=0.05,
        ema=0.995,
        value_weight=2.0,
        eval_blend=1.0,
        teach="auto",
        frozen_norms=True,
    )


@settings(ConfigError)
class GateConfig:
    """Matches and thresholds of a promotion: SPRT against the best network, then both controls.

    By the default test a network 20 Elo worse passes less than once in 20 times
    (tests/pipeline/finetune/test_gate.py).
    """

    games: Games = 400
    """Maximum number of games against the best network; a candidate is rejected if the test is
    undecided after them."""
    simulations: Positive = 64
    """Simulations per move of both players."""
    seed_games: Games = 100
    """Games against each control: the supervised checkpoint, and a network trained on human rows
    alone for as many steps. Candidates that the test accepts play all of them."""
    elo0: float = -15.0
    """Elo difference of the sequential test's H0; a candidate is rejected when H0 is accepted."""
    elo1: float = 35.0
    """Elo difference of the sequential test's H1; a candidate passes when H1 is accepted."""
    max_top1_drop: Share = 0.015
    """Human top-1 that a candidate may lose against the supervised checkpoint; one that loses more
    is not promoted."""

    def __post_init__(self) -> None:
        _ = self.sprt  # raises SprtError for invalid bounds

    @property
    def sprt(self) -> SprtConfig:
        """Return the test against the best network."""
        return SprtConfig(elo0=self.elo0, elo1=self.elo1, alpha=0.05, beta=0.1)


@settings(ConfigError)
class FinetuneConfig:
    """The loop. Its length is a number of generations or minutes or both."""

    generations: Positive | None = None
    """Number of generations; a later start may ask for more."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Minutes in all, summed over every start of the loop; the stage in progress then stops and can
    be resumed."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Random seed of games, searches, order of training rows and openings; each generation derives
    its own."""
    buffer: Positive = 4
    """Number of recent generations whose searched rows are trained on, the new one included; only
    those of the same explorer and targets count."""
    human_share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of human rows in a training batch; 0 without --positions, and once all human rows were
    used where searched rows keep the policy."""
    most_uses: Annotated[float, Field(gt=0, le=MOST_USES)] = 2.0
    """Maximum number of uses of a searched row, on average, over all trainings that led to a
    network."""
    workers: Count = 0
    """Processes that play or search; 0 for one per core."""
    engine: str = "local"
    """Where games and searches run: local, ray, ray:HOST:PORT or ray://HOST:PORT."""
    games_share: Share = 0.0
    """Share of `explore.games` that a generation plays."""
    near_share: Share = 0.0
    """Share of `explore.count` that is searched one to four random moves off people's positions."""
    explore: ExploreConfig = field(default_factory=_explore)
    """EXPLORE: how many positions are searched, how, and by whom; the shares decide on the
    source."""
    train: TrainConfig = field(default_factory=default_training)
    """TRAIN: the training of one generation. An epoch is a pass over the searched rows of the last
    generations; training ends earlier where `most_uses` is reached."""
    gate: GateConfig = field(default_factory=GateConfig)
    """ARENA and the verdict: who is promoted."""

    def __post_init__(self) -> None:
        if self.generations is None and self.minutes is None:
            raise ConfigError("set how long to fine-tune: generations, minutes or both")
        if self.games_share + self.near_share > 1:
            raise ConfigError("games_share and near_share must be at most 1 together")
        if self.train.epochs is None or self.train.seed:
            raise ConfigError(
                "a generation is trained for epochs, with the loop's seed: set train.epochs, and "
                "seed instead of train.seed"
            )

    def training(self, seed: int) -> TrainConfig:
        """Return the settings of a generation's training with this seed."""
        is_settled = self.train.teach in ("policy", "value", "both")
        return replace(self.train, teach=self.train.teach if is_settled else "policy", seed=seed)

    @property
    def sources(self) -> dict[str, ExploreConfig]:
        """Return what a generation searches, by source; people's positions fill up the shares."""
        shares: dict[SourceName, float] = {
            "people": 1.0 - self.games_share - self.near_share,
            "near": self.near_share,
            "games": self.games_share,
        }
        return {
            source: replace(
                self.explore,
                source=source,
                count=max(1, round(share * self.explore.count)),
                games=max(1, round(share * self.explore.games)),
            )
            for source, share in shares.items()
            if share > SMALLEST_SHARE
        }


FREE_TO_CHANGE = frozenset(
    {"generations", "minutes", "workers", "engine", "train.device", "train.threads"}
)
"""Settings that a resumed loop may change: how long it runs and where it is computed."""
