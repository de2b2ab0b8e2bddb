"""Settings of the fine-tuning loop. Imports little: the command line and the launchpad make their
forms from it.
"""

from dataclasses import asdict, field, replace
from typing import Annotated, Literal

from pydantic import Field

from engine.match.sprt import SprtConfig
from model.settings import Count, Positive, Share, settings
from model.training.config import Device, OptimizerName, TrainConfig
from pipeline.errors import ConfigError
from pipeline.selfplay.config import ExploreConfig, SourceName

MOST_USES = 1_000_000
"""Largest value of `most_uses`."""
SMALLEST_SHARE = 1e-6
"""Share of a source below which it is left out: shares are sums of fractions."""
LoopTeach = Literal["auto", "policy", "value", "both", "none"]
Games = Annotated[int, Field(ge=2, multiple_of=2)]
"""Games come in pairs, one with each color."""


def _explore() -> ExploreConfig:
    # four times the simulations of a match: 16 weakened the network (docs/findings.md)
    search = replace(ExploreConfig().search, simulations=256, max_considered_actions=16)
    return ExploreConfig(games=4000, count=48_000, search=search)


@settings(ConfigError)
class TuneConfig:
    """Training of one generation."""

    epochs: float = 1.6
    """Passes over the searched rows of the last generations; training ends earlier where
    `most_uses` is reached."""
    batch_size: int = 256
    """Positions in one step."""
    optimizer: OptimizerName = "auto"
    """Optimizer: adamw, sgd, muon, or auto: muon for fianchetto-human and fianchetto-rated, adamw
    for other networks."""
    learning_rate: float = 7e-4
    """Highest learning rate."""
    momentum: float = 0.95
    """Momentum of sgd and muon."""
    visits_temperature: float = 1.0
    """Temperature of a search's visits, which are the policy's target: below 1 sharpens them."""
    value_weight: float = 2.0
    """Weight of the value loss beside the policy's cross-entropy."""
    eval_blend: float = 1.0
    """Share of the value's target that is the engine's evaluation, in rows that have one; the rest
    is the game's result."""
    teach: LoopTeach = "auto"
    """Targets of searched rows: policy (their visits), value (the best move's value), or both; none
    trains on human rows alone. auto compares the network's search with the hand-written player's on
    held-out positions: value by the hand-written player where that one errs less, else none. It
    means value where the hand-written player was set to search, and policy where the network plays
    games."""
    keep_policy: bool = True
    """Policy target of rows whose search teaches the value alone: true keeps the policy of the
    generation's best network, false uses the move that a person played, and keeps the policy only
    where no move is known."""
    search_value_share: float = 1.0
    """Share of a search's value in the value's target where it teaches the value; the rest is as in
    other rows."""
    results: bool = True
    """Use results of games as targets of the value; without them, rows that have neither an
    evaluation nor a search's value do not train it."""
    frozen_norms: bool = True
    """Use the batch norms' running statistics and leave them unchanged."""
    threads: int = 0
    """Processor threads of the network; 0 for all cores."""
    device: Device = "auto"
    """Where to train: auto (a GPU when there is one), cpu or cuda."""

    def __post_init__(self) -> None:
        if self.teach == "auto" and self.search_value_share != 1.0:
            raise ConfigError(
                "teach auto decides what searches teach: with search_value_share, set teach to "
                "value or both"
            )
        self.train_config(seed=0)

    def train_config(self, *, seed: int) -> TrainConfig:
        """Return a generation's training configuration; raises TrainConfigError."""
        teach = "policy" if self.teach in ("auto", "none") else self.teach
        return TrainConfig(**asdict(self) | {"teach": teach}, ema=0.995, warmup=0.05, seed=seed)


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
    train: TuneConfig = field(default_factory=TuneConfig)
    """TRAIN: the training of one generation."""
    gate: GateConfig = field(default_factory=GateConfig)
    """ARENA and the verdict: who is promoted."""

    def __post_init__(self) -> None:
        if self.generations is None and self.minutes is None:
            raise ConfigError("set how long to fine-tune: generations, minutes or both")
        if self.games_share + self.near_share > 1:
            raise ConfigError("games_share and near_share must be at most 1 together")

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
