"""How a generation of self-play is made: who plays, how it searches, how games begin and end, how much chance there is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from engine.errors import UserError
from engine.search import SearchConfig
from engine.selfplay.generate import SelfPlayConfig
from pipeline.ingest.chunk import IngestConfig


class ExploreError(UserError):
    """Self-play that cannot be begun, continued or finished; the games that were finished are kept."""


def _search() -> SearchConfig:
    # Play flattens the policy; what a policy is to learn must not be flattened, or each generation is flatter than the last.
    # Judged by Stockfish, 16 simulations on 8 moves teach more than 32 on 16 by mctx's weight of values; by this weight less,
    # for half the work (docs/findings.md).
    return SearchConfig(
        algorithm="gumbel",
        simulations=16,
        max_considered_actions=8,
        policy_temperature=1.0,
        value_scale=1.0,
        rescale_values=False,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ExploreConfig(SelfPlayConfig):
    """A generation of self-play; all of it is in the manifest, and a directory begun otherwise is refused."""

    games: int = 1000
    """Games to play."""
    seed: int = 0
    """Of all chance; a generation's games differ from another's."""
    explorer: Literal["network", "hand-written", "uniform", "mixture", "reanalyse"] = "network"
    """Who plays: the checkpoint, the hand-written evaluator, one without knowledge, or the first two a share of games each;
    or reanalyse, in a fine-tune: nobody plays, and the best network searches positions of people's games."""
    hand_written_share: float = 0.5
    """Share of a mixture's games that the hand-written evaluator plays; which ones, chance decides."""
    search: SearchConfig = field(default_factory=_search)
    """How moves are searched in full."""
    noise_first: float = 1.0
    """Factor of the search's noise (Gumbel's scale, the Dirichlet share) in the first generation."""
    noise_last: float = 0.5
    """The same in the last generation; linear in between."""
    width: int = 64
    """Games side by side in each process: 64 suits a core, 1024 a GPU."""
    full_share: float = 1.0
    """Share of moves that are searched in full and become rows; the others are searched quickly, without noise."""
    sampled_plies: int = 8
    """Most half-moves after the opening that are drawn from the policy without search; each game draws how many."""
    resign: float = 0.95
    """Return up when the value is below minus this, between 0 and 1; 0 never does."""
    resign_moves: int = 2
    """Moves of one side in a row that must look that bad."""
    played_on: float = 0.1
    """Share of games in which nobody may give up, to measure how often that would have been wrong."""
    book: Path | None = None
    """Begin games with the openings of this PGN or EPD file."""
    book_plies: int = 8
    """Half-moves of made openings, and the most that are taken from a PGN book's games; 0 for all of them."""
    made_openings: int = 0
    """Openings that the hand-written evaluator makes, where there is no book; 0: games begin at the start position."""
    draw_penalty: float = 0.0
    """Taken off `root_value` in the rows of drawn games, for both sides."""
    draw_material: float = 0.0
    """Added to it in turn: this times tanh(material ahead at the end of the game / 3 pawns)."""
    groups: int = 0
    """Groups of games that take turns at the evaluator, so that a GPU need not wait for the trees; 0: two there, else one."""
    cache_mib: int = 32
    """MiB of each process's evaluation cache; 0 for none."""
    device: Literal["auto", "cpu", "cuda", "onnx"] = "auto"
    """Where the network runs: auto, cpu, cuda, or onnx: on the processor by onnxruntime, from the checkpoint's model.onnx, the
    fastest on a CPU when exported with `--int8`. A fine-tune exports its networks itself."""
    amp: Literal["auto", "bf16", "fp16", "off"] = "auto"
    """The network's arithmetic: auto, bf16, fp16 or off."""
    test_share: float = 0.0
    """Share of games held out for the test split, by a hash of their moves."""
    val_share: float = 0.05
    """Share of games held out for validation, by the same hash."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        SelfPlayConfig.__post_init__(self)
        for name in ("games", "seed", "book_plies", "made_openings", "cache_mib", "groups"):
            if getattr(self, name) < (least := int(name == "games")):
                raise ExploreError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("explorer", "device", "amp"):
            if getattr(self, name) not in (known := get_args(self.__annotations__[name])):
                raise ExploreError(f"{name} is one of {', '.join(known)}, not {getattr(self, name)!r}")
        if self.device == "onnx" and self.amp != "auto":
            raise ExploreError("with the device onnx amp is auto: the arithmetic was chosen by `fianchetto export`")
        for name in ("hand_written_share", "noise_first", "noise_last", "draw_penalty", "draw_material"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ExploreError(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        if self.full_share == 0.0:
            raise ExploreError("with a full_share of 0 no move would become a row")
        if self.book is not None and self.made_openings:
            raise ExploreError("give a book or made_openings, not both")
        self.ingest()

    @property
    def uses_network(self) -> bool:
        """Return whether a checkpoint is needed."""
        return self.explorer in ("network", "mixture")

    def ingest(self) -> IngestConfig:
        """Return what the rows are made with."""
        return IngestConfig(test_share=self.test_share, val_share=self.val_share, seed=self.seed, chunk_mib=8)

    def noise(self, generation: int, generations: int) -> float:
        """Return the factor of noise of a generation, 0 .. generations - 1."""
        if not 0 <= generation < max(generations, 1):
            raise ExploreError(f"there is no generation {generation} among {generations}: they count from 0")
        late = generation / (generations - 1) if generations > 1 else 0.0
        return self.noise_first + late * (self.noise_last - self.noise_first)

    def search_in(self, generation: int, generations: int) -> SearchConfig:
        """Return how a generation searches."""
        noise, search = self.noise(generation, generations), self.search
        return replace(
            search, gumbel_scale=search.gumbel_scale * noise, dirichlet_fraction=search.dirichlet_fraction * noise
        )

    def seed_in(self, generation: int) -> int:
        """Return the seed of a generation's games."""
        return int(np.random.SeedSequence((self.seed, generation)).generate_state(1, np.uint32)[0])

    def explorer_of(self, number: int, seed: int) -> str:
        """Tell who plays a game: network, hand-written or uniform; `seed` is the generation's."""
        if self.explorer != "mixture":
            return self.explorer
        drawn = np.random.Generator(np.random.PCG64((seed, number, 1))).random()
        return "hand-written" if drawn < self.hand_written_share else "network"


def draw_score(config: ExploreConfig, record: Mapping[str, Any]) -> float:
    """Return what is added to White's `root_value` for a drawn game's material, in -1..1; 0 for a game that was decided."""
    if record["result"] != "1/2-1/2":
        return 0.0
    return float(config.draw_material * np.tanh(record["material"] / 3.0))
