"""What a run remembers of its own course: the lowest loss, against spikes, and the best measurement, against overfitting."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from model.training.config import TrainConfig

JUDGED = "cross_entropy"
"""The validation figure that `patience` goes by; lower is better."""


@dataclass(slots=True)
class RunMonitor:
    """The course so far; a checkpoint's card holds it, so that a resumed run judges as an uninterrupted one."""

    lowest: float | None = None
    """Lowest mean loss of a line of metrics, nats."""
    best: dict[str, float] = field(default_factory=dict)
    """Figures of the best measurement."""
    best_step: int = 0
    """The step it was made at."""
    without: int = 0
    """Measurements since then."""

    @classmethod
    def from_row(cls, row: object) -> "RunMonitor":
        """Read what a card says, which may be nothing: cards of older runs have no watch."""
        if not isinstance(row, Mapping):
            return cls()
        lowest, best = row.get("lowest"), row.get("best")
        return cls(
            float(lowest) if isinstance(lowest, (int, float)) else None,
            {str(name): float(value) for name, value in best.items()} if isinstance(best, Mapping) else {},
            int(row.get("best_step", 0)),
            int(row.get("without", 0)),
        )

    def row(self) -> dict[str, Any]:
        """Write it as a card's plain values."""
        return asdict(self)

    def spiked(self, config: TrainConfig, loss: float) -> str | None:
        """Say what is wrong with a line's mean loss, None when it is not; the lowest is remembered."""
        if not math.isfinite(loss):
            return "the loss is not finite"
        if config.spike and self.lowest is not None and loss > self.lowest + config.spike:
            return f"the loss rose from {self.lowest:.3f} to {loss:.3f}"
        self.lowest = loss if self.lowest is None else min(self.lowest, loss)
        return None

    def measured(self, figures: Mapping[str, float], step: int) -> bool:
        """Return whether a measurement is the best so far, and count those that were not."""
        if self.best and not figures[JUDGED] < self.best[JUDGED]:
            self.without += 1
            return False
        self.best, self.best_step, self.without = dict(figures), step, 0
        return True

    def exhausted(self, config: TrainConfig) -> bool:
        """Return whether the run has gone on without a better measurement for as long as it may."""
        return bool(config.patience) and self.without >= config.patience
