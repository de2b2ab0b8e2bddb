"""How much of a report is about told ratings. It imports little, because `--help` is made from it."""

from dataclasses import dataclass

from pipeline.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingsConfig:
    """Measurements of networks that read ratings."""

    rating_rows: int = 100
    """Positions of each of 11 rating bands on which a network that reads ratings is told each of 11 ratings; 0 for none."""
    judged: int = 0
    """Positions of each rating band whose every move a UCI engine judges, to compare the loss of moves drawn under each told
    rating with that of people's moves; 0 for none."""
    engine: str = "stockfish"
    """Command of the UCI engine that judges; where it is not installed, the comparison is left out."""
    depth: int = 9
    """Depth of its search of every legal move."""
    workers: int = 0
    """Engines running at once; 0 for one per core."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        if min(self.rating_rows, self.judged, self.workers) < 0 or self.depth < 1:
            raise ConfigError("rating_rows, judged and workers are at least 0, and depth is at least 1")
