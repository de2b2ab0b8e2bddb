"""Settings of the measurements by rating. This module imports little, because `--help` is made from it."""

from dataclasses import dataclass

from pipeline.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingsConfig:
    """Measurements of networks that are conditioned on ratings."""

    rating_rows: int = 0
    """Positions per rating band for the matrix that evaluates each of 11 bands under each of 11 ratings; 0 for no matrix."""
    judged: int = 0
    """Positions per rating band whose moves a UCI engine evaluates, to compare what the network's and people's moves lose; 0
    for none."""
    engine: str = "stockfish"
    """Command of that UCI engine; the comparison is skipped where it is not installed."""
    depth: int = 9
    """Search depth of the engine for every legal move."""
    workers: int = 0
    """Engines that run at once; 0 for one per core."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if min(self.rating_rows, self.judged, self.workers) < 0 or self.depth < 1:
            raise ConfigError("rating_rows, judged and workers must be 0 or more, and depth 1 or more")
