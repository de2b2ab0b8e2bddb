"""The command that makes a checkpoint usable without torch: export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.cli.commands.base import Common
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError
from pipeline.storage.claims import CHECKPOINT, KINDS, is_of
from pipeline.storage.preflight import require_folder


def _admit(out: Path) -> None:
    """Raise ConfigError for a file that is no ONNX file's, or lies in a folder that is not a checkpoint's."""
    if out.suffix != ".onnx":
        raise ConfigError(f"{out} is no name of an ONNX file: let it end in .onnx")
    for kind in KINDS:
        if kind is not CHECKPOINT and is_of(out.parent, kind):
            raise ConfigError(f"{out.parent} is {kind.name}: choose another directory")


COMPARED = 1000
"""Positions on which the exported network must answer as the checkpoint does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Export(Common):
    """Export a checkpoint to ONNX, checked against torch on 1,000 positions before it is published."""

    checkpoint: Path
    """Directory of the checkpoint."""
    out: Path | None = None
    """File to write; model.onnx beside the card, where players look for it, when there is none."""
    positions: Path | None = None
    """Dataset whose test positions are compared; positions of random games when there is none."""

    def run(self) -> dict[str, Any]:
        """Export, compare and publish; gives the file and the largest differences."""
        from model.data.playouts import playout_rows
        from model.inference.export import export

        if self.out is not None:
            _admit(self.out)
        require_folder((self.out or self.checkpoint / "model.onnx").parent)
        with bar("export") as progress:
            if self.positions is None:
                rows = playout_rows(COMPARED)
            else:
                from pipeline.dataset.batches import Batches

                rows = next(Batches([self.positions], "test", batch_size=COMPARED).drawn(COMPARED))
            said = export(self.checkpoint, self.out, rows, progress=progress)
        differ = f"{said['largest_policy_difference']:.1e} nats of a move's log-probability"
        differ += f" and {said['largest_value_difference']:.1e} of a chance of win, draw or loss"
        text = f"{said['out']}: {said['bytes'] / 1e6:.1f} MB; on {said['positions']} positions it differs by at most {differ}"
        return said | {"text": text}
