"""Settings of the fine-tuning loop. This module imports little, because the command line and
Dagster's launchpad build their options from it.
"""

from dataclasses import field, replace
from typing import Annotated

from pydantic import Field

from engine.match.sprt import SprtConfig
from model.settings import Count, Positive, Share, settings
from model.training.config import TrainConfig
from pipeline.errors import ConfigError
from pipeline.selfplay.config import ExploreConfig, SourceName

MIN_SOURCE_SHARE = 1e-6
"""Shares up to this one count as 0, because a computed share of 0 may have a rounding error."""
EvenCount = Annotated[int, Field(ge=2, multiple_of=2)]
"""Number of games in a match, which plays each opening twice with colors swapped."""


def _default_exploration() -> ExploreConfig:
    # Four times as many simulations as in a match. Training on searches of 16 simulations
    # weakened the network (docs/findings.md).
    search = replace(ExploreConfig().search, simulations=256, max_considered_actions=16)
    return ExploreConfig(games=4000, count=48_000, search=search)


def default_training() -> TrainConfig:
    """Return the default training settings of a generation."""
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
    """Settings of the matches, and conditions for promotion.

    A candidate must pass an SPRT against the best network, not lose to the supervised checkpoint,
    and still predict human moves. With the default settings, a network 20 Elo worse than the best
    passes the SPRT with a probability below 5 % (tests/pipeline/finetune/test_gate.py).
    """

    games: EvenCount = 400
    """Maximum number of games against the best network; a candidate is rejected if the SPRT is
    still undecided after them."""
    simulations: Positive = 64
    """Simulations per move of both players in every match."""
    seed_games: EvenCount = 100
    """Number of games against each control, for candidates that the SPRT accepts. The controls are
    the supervised checkpoint, and a network trained on human rows alone for as many steps."""
    elo0: float = -15.0
    """Elo difference of the SPRT's H0; a candidate is rejected when H0 is accepted."""
    elo1: float = 35.0
    """Elo difference of the SPRT's H1; a candidate passes the SPRT when H1 is accepted."""
    max_top1_drop: Share = 0.015
    """Maximum drop of top-1 on human moves below that of the supervised checkpoint, from 0 to 1; a
    candidate that drops further is not promoted."""

    def __post_init__(self) -> None:
        _ = self.sprt  # raises SprtError for invalid bounds

    @property
    def sprt(self) -> SprtConfig:
        """The sequential test against the best network."""
        return SprtConfig(elo0=self.elo0, elo1=self.elo1, alpha=0.05, beta=0.1)


@settings(ConfigError)
class FinetuneConfig:
    """Settings of a fine-tuning loop; `generations`, `minutes` or both set its length."""

    generations: Positive | None = None
    """Total number of generations; increase it to continue a finished loop."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Time limit in minutes, summed over all starts of the loop; the stage in progress then stops
    and can be resumed."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Random seed from which each generation derives its own."""
    buffer: Positive = 4
    """Number of recent generations whose searched rows are used for training, including the new
    one; generations with another explorer or other training targets are left out."""
    human_share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of human rows in a training batch, if there are human datasets (--positions). With
    teach=value and keep_policy, it is 0 once every human row has been used."""
    most_uses: Annotated[float, Field(gt=0, le=1e6)] = 2.0
    """Maximum number of times that a searched row is used on average, over all training runs that
    led to a network."""
    workers: Count = 0
    """Worker processes; 0 for one per core, or fewer if memory for a GPU is short."""
    engine: str = "local"
    """Where games and searches run: local, ray, ray:HOST:PORT or ray://HOST:PORT."""
    games_share: Share = 0.0
    """Share of self-play: each generation plays this share of `explore.games`."""
    near_share: Share = 0.0
    """Share of `explore.count` to search up to four random moves from human positions. What
    games_share and near_share leave are human positions themselves."""
    explore: ExploreConfig = field(default_factory=_default_exploration)
    """Settings of games and searches: their numbers, search settings and player. games_share and
    near_share set the sources."""
    train: TrainConfig = field(default_factory=default_training)
    """Settings of TRAIN. An epoch is a pass over the searched rows in the buffer;
    training ends
    early when `most_uses` is reached."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Matches of a candidate, and conditions for its promotion."""

    def __post_init__(self) -> None:
        if self.generations is None and self.minutes is None:
            raise ConfigError("set how long to fine-tune: generations, minutes or both")
        if self.games_share + self.near_share > 1:
            raise ConfigError("the sum of games_share and near_share must be at most 1")
        if self.train.epochs is None or self.train.seed:
            raise ConfigError(
                "generations are trained in epochs with the loop's seed: set train.epochs, and "
                "set seed instead of train.seed"
            )

    def make_train_config(self, seed: int) -> TrainConfig:
        """Return the training settings with this random seed; teach auto or none becomes policy."""
        is_explicit = self.train.teach in ("policy", "value", "both")
        return replace(self.train, teach=self.train.teach if is_explicit else "policy", seed=seed)

    @property
    def sources(self) -> dict[str, ExploreConfig]:
        """The exploration settings by source, for each source whose share is not 0."""
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
            if share > MIN_SOURCE_SHARE
        }


CHANGEABLE_SETTINGS = frozenset(
    {"generations", "minutes", "workers", "engine", "train.device", "train.threads"}
)
"""Settings that may differ when a loop is resumed: its length, and the hardware it runs on."""
