"""Commands on the table of networks: presets."""

from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import UserError
from engine.progress import Tick
from pipeline.cli.commands.base import Common
from pipeline.cli.progress import bar


@dataclass(frozen=True, kw_only=True, slots=True)
class Presets(Common):
    """List the networks there are: parameters, arithmetic for a position, and positions a second on this machine."""

    names: tuple[str, ...] = ()
    """Which presets, all when none is named."""
    measure: bool = True
    """Whether to measure positions a second; without, the list is there at once."""
    seconds: float = 1.0
    """Time for each measurement, at least; a step of the largest network may take longer."""
    batch_size: int = 64
    """Positions in a training step and in a call of the evaluator."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= 3600 or not 2 <= self.batch_size <= 1 << 20:
            raise UserError("seconds must be from 0 to 3600, and batch_size from 2 to 1048576")

    def run(self) -> dict[str, Any]:
        """List and measure."""
        import torch

        from model.costs import rates, size
        from model.network.presets import preset, presets

        chosen = [preset(name) for name in self.names] or list(presets().values())
        rows: list[dict[str, Any]] = []
        with bar("presets") as progress:
            for row in chosen:
                entry: dict[str, Any] = {"preset": row.name, "view": row.view, "moves": row.moves, **size(row)}
                if self.measure:
                    measured = rates(row, batch_size=self.batch_size, seconds=self.seconds, device=self.device)
                    entry |= {f"{name}_positions_per_second": round(value, 1) for name, value in measured.items()}
                rows.append(entry)
                progress(Tick(len(rows), len(chosen), "presets"))
        result: dict[str, Any] = {"presets": rows, "threads": torch.get_num_threads(), "batch_size": self.batch_size}
        return result if self.json else result | {"text": table(rows, self.batch_size, torch.get_num_threads())}


_HEADINGS = {
    "preset": "preset",
    "view": "view",
    "moves": "moves",
    "parameters": "parameters",
    "flops": "MFLOP/position",
    "training_positions_per_second": "training/s",
    "inference_positions_per_second": "inference/s",
}


def table(rows: list[dict[str, Any]], batch_size: int, threads: int) -> str:
    """Lay the list out in columns, for people."""
    names = [name for name in _HEADINGS if name in rows[0]]
    cells = [[_HEADINGS[name] for name in names], *([_shown(name, row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    lines = [
        "  ".join(
            cell.ljust(width) if isinstance(rows[0][name], str) else cell.rjust(width)
            for name, cell, width in zip(names, line, widths, strict=True)
        ).rstrip()
        for line in cells
    ]
    note = "a multiply-add is two FLOP"
    if "training_positions_per_second" in names:
        note += f"; positions a second in batches of {batch_size} on {threads} threads"
    return "\n".join([*lines, "", note])


def _shown(name: str, value: Any) -> str:
    if name == "flops":
        return f"{value / 1e6:,.1f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if isinstance(value, float) else str(value)
