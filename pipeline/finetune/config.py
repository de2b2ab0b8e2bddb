"""What the fine-tuning loop is told; light, since the command line and the launchpad make their forms from it."""

from dataclasses import dataclass, field

from engine.match.sprt import SprtConfig
from engine.search import SearchConfig
from model.training.config import TrainConfig
from pipeline.errors import ConfigError
from pipeline.selfplay.config import ExploreConfig


def gate_test() -> SprtConfig:
    """Return the gate's test: with it a network 20 Elo worse passes less than once in 20 times (tests: test_gate.py)."""
    return SprtConfig(elo0=-15.0, elo1=35.0, alpha=0.05, beta=0.1)


def explored() -> ExploreConfig:
    """Return what a generation learns from: searched positions of people's games, or the explorer's games.

    Positions are searched with four times the simulations that are played with, since 16 taught a loss (docs/findings.md).
    """
    search = SearchConfig(
        algorithm="gumbel",
        simulations=256,
        max_considered_actions=16,
        policy_temperature=1.0,
        value_scale=1.0,
        rescale_values=False,
    )
    return ExploreConfig(explorer="reanalyse", games=4000, count=48_000, search=search)


def tuning() -> TrainConfig:
    """Return the training of one generation: searches teach the policy alone, people's rows with evaluations the rest.

    A small network's own search knows less of a position's value than the evaluations in people's games, and a value that is
    taught by it errs more, by every recipe that was tried (docs/findings.md).
    """
    return TrainConfig(
        epochs=1.6,
        learning_rate=7e-4,
        ema=0.995,
        warmup=0.05,
        eval_blend=1.0,
        value_weight=2.0,
        frozen_norms=True,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GateConfig:
    """How a candidate earns its place: a match against the best, then one against the supervised seed."""

    games: int = 400
    """Games against the best at most; the test ends the match earlier, and one that is undecided at the end is lost."""
    simulations: int = 64
    """Simulations of both players' moves."""
    seed_games: int = 100
    """Games against the supervised seed, for a candidate that the test accepts: all are played, so its Elo is honest."""
    options: tuple[str, ...] = ()
    """NAME=VALUE of both players' searches, as `fianchetto arena DIR,c_puct=2` has them."""
    concurrency: int = 0
    """Games side by side; 0 for 64."""
    sprt: SprtConfig = field(default_factory=gate_test)
    """The test against the best."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        for name in ("games", "seed_games"):
            if getattr(self, name) < 2 or getattr(self, name) % 2:
                raise ConfigError(f"{name} of the gate come in pairs: 2, 4, 6 ..., not {getattr(self, name)}")
        if self.simulations < 1 or self.concurrency < 0:
            raise ConfigError("simulations of the gate must be 1 or more, concurrency 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalConfig:
    """What is measured of every candidate, and when a generation is undone."""

    positions: int = 16_384
    """Human positions of the test splits that are measured, at most."""
    max_top1_drop: float = 0.015
    """Human top-1 that a generation may lose against the seed's before it is undone."""
    games: int = 40
    """Games against each outside opponent, of the seed and of accepted candidates; 0 for none."""
    hand_written: int = 64
    """Simulations of the hand-written opponent; 0 leaves it out."""
    engine: str = "stockfish"
    """Command of an engine that is the other opponent where it is installed; "" leaves it out."""
    nodes: int = 100
    """Nodes of that engine's moves."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        if self.positions < 1 or not 0.0 <= self.max_top1_drop <= 1.0:
            raise ConfigError("eval needs 1 position or more and a max_top1_drop of 0 to 1")
        if self.games < 0 or self.games % 2:
            raise ConfigError(f"games of eval come in pairs, or are 0, not {self.games}")
        if self.hand_written < 0 or self.nodes < 1:
            raise ConfigError("hand_written of eval must be 0 or more, nodes 1 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneConfig:
    """The loop; how long it is, is said by generations or minutes or both."""

    generations: int | None = None
    """Generations in all; more may be asked for later."""
    minutes: float | None = None
    """Minutes in all, over every start of the loop: the stage that is under way is stopped cleanly, and can be continued."""
    seed: int = 0
    """Of all chance: games, order of training rows, openings; every generation has its own from it."""
    buffer: int = 4
    """Generations whose games a training reads, the newest included."""
    human_share: float = 0.5
    """Share of human rows in a training batch; nothing where no human positions are given."""
    most_uses: float = 2.0
    """Times that a self-play row may be used by the trainings that lead to one network."""
    anneal: int = 10
    """Generations over which the pull to the seed goes from its first to its last value."""
    workers: int = 0
    """Processes that play games; 0 for one a core."""
    engine: str | None = None
    """What plays the games, as in `fianchetto selfplay`: local, ray, ray:HOST:PORT or ray://HOST:PORT; local if not said."""
    explore: ExploreConfig = field(default_factory=explored)
    """EXPLORE: the best network searches positions of the human datasets (reanalyse), or an explorer plays games."""
    preflight: int = 200
    """Positions of the human datasets by which an installed engine judges, before anything is begun, whether the search that
    is to teach knows more than the network; 0 for none."""
    force: bool = False
    """Go on where it does not."""
    train: TrainConfig = field(default_factory=tuning)
    """TRAIN: the training of one generation; its seed comes from the loop's."""
    gate: GateConfig = field(default_factory=GateConfig)
    """ARENA: who is promoted."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """EVAL: what is measured, and when a generation is undone."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        if self.generations is None and self.minutes is None:
            raise ConfigError("say how long to fine-tune: generations, or minutes, or both")
        if (self.generations is not None and self.generations < 1) or (self.minutes is not None and self.minutes <= 0):
            raise ConfigError("generations must be 1 or more, minutes above 0")
        if self.seed < 0 or self.workers < 0:
            raise ConfigError("seed and workers must be 0 or more")
        if self.preflight < 0:
            raise ConfigError("preflight must be 0 positions or more")
        if self.train.minutes is not None:
            raise ConfigError(
                "give a fine-tune in steps or epochs: how often it uses its rows is counted before it begins"
            )
        if self.buffer < 1 or self.anneal < 1:
            raise ConfigError("buffer and anneal must be 1 generation or more")
        if not 0.0 <= self.human_share < 1.0 or not self.most_uses > 0.0:
            raise ConfigError("human_share must be from 0 to below 1, most_uses above 0")


FREE_TO_CHANGE = frozenset(
    {"generations", "minutes", "workers", "engine", "gate.concurrency", "force", "preflight", "explore.device"}
)
"""Settings that a continued loop may change: they say how long it goes on and how it is computed, not what it does."""
