"""Commands on networks: presets, export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.errors import UserError
from engine.progress import Tick
from pipeline.cli.commands.base import Common
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError
from pipeline.storage.claims import CHECKPOINT, KINDS, is_of
from pipeline.storage.preflight import require_folder

COMPARED = 1000
"""Positions on which an exported network must answer as its checkpoint does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Presets(Common):
    """List the networks: parameters, FLOP per position, and positions per second on this machine."""

    names: tuple[str, ...] = ()
    """Presets to list; all when none is named."""
    measure: bool = True
    """Measure positions per second; without it the list is there at once."""
    seconds: float = 1.0
    """Least time of each measurement, seconds; a step of the largest network may take longer."""
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
        threads = torch.get_num_threads()
        result: dict[str, Any] = {"presets": rows, "threads": threads, "batch_size": self.batch_size}
        if self.json:
            return result
        note = "a multiply-add is two FLOP"
        if self.measure:
            note += f"; positions per second in batches of {self.batch_size} on {threads} threads"
        return result | {"text": f"{table(rows)}\n\n{note}"}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the list as aligned columns, names to the left and numbers to the right."""
    columns = [["preset"], ["view"], ["moves"], ["parameters"], ["MFLOP/position"], ["training/s"], ["inference/s"]]
    for row in rows:
        flops = f"{row['flops'] / 1e6:,.1f}"
        measured = [f"{value:,.0f}" for name, value in row.items() if name.endswith("_per_second")]
        cells = [row["preset"], row["view"], row["moves"], f"{row['parameters']:,}", flops, *measured]
        for column, cell in zip(columns, cells, strict=False):
            column.append(cell)
    filled = [column for column in columns if len(column) > 1]
    widths = [max(map(len, column)) for column in filled]
    aligned = [
        [cell.ljust(width) if number < 3 else cell.rjust(width) for cell in column]
        for number, (column, width) in enumerate(zip(filled, widths, strict=True))
    ]
    return "\n".join("  ".join(line).rstrip() for line in zip(*aligned, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Export(Common):
    """Export a checkpoint to ONNX; the file is compared with torch on 1,000 positions before it is published."""

    checkpoint: Path
    """Directory of the checkpoint."""
    out: Path | None = None
    """File to write; the default is model.onnx in the checkpoint's directory, where players look for it."""
    positions: Path | None = None
    """Dataset whose test positions are compared; the default is positions of random games."""

    def run(self) -> dict[str, Any]:
        """Return the file and the largest differences."""
        from model.inference.export import export, random_positions

        if self.out is not None:
            _admit(self.out)
        require_folder((self.out or self.checkpoint / "model.onnx").parent)
        with bar("export") as progress:
            if self.positions is None:
                said = export(self.checkpoint, self.out, random_positions(COMPARED), progress=progress)
            else:
                from pipeline.dataset.batches import Batches

                batch = next(Batches([self.positions], "test", batch_size=COMPARED).drawn(COMPARED))
                said = export(self.checkpoint, self.out, batch["planes"], batch, progress=progress)
        differ = f"{said['largest_policy_difference']:.1e} nats of a move's log-probability"
        differ += f" and {said['largest_value_difference']:.1e} of a chance of win, draw or loss"
        text = f"{said['out']}: {said['bytes'] / 1e6:.1f} MB; on {said['positions']} positions it differs by at most {differ}"
        return said | {"text": text}


def _admit(out: Path) -> None:
    """Raise ConfigError unless `out` ends in .onnx and lies in a checkpoint's folder or one that is not ours."""
    if out.suffix != ".onnx":
        raise ConfigError(f"{out} is not the name of an ONNX file: let it end in .onnx")
    for kind in KINDS:
        if kind is not CHECKPOINT and is_of(out.parent, kind):
            raise ConfigError(f"{out.parent} is {kind.name}: choose another directory")
