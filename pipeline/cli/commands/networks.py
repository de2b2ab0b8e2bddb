"""Commands on networks: presets, export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from engine.errors import UserError
from engine.progress import Tick
from pipeline.cli.commands.base import Common
from pipeline.cli.endings import command
from pipeline.cli.progress import bar
from pipeline.errors import ConfigError
from pipeline.storage.claims import CHECKPOINT, KINDS, is_of
from pipeline.storage.preflight import require_folder

SIZES = {
    "fianchetto-xs": (578_691, 63_172_992),
    "fianchetto-rated": (569_027, 63_105_664),
    "fianchetto-human": (621_124, 63_979_136),
    "fianchetto-s": (2_866_700, 315_910_272),
    "fianchetto-m": (9_095_436, 1_040_928_512),
    "fianchetto-l": (29_553_804, 3_575_279_360),
    "fianchetto-squares": (7_929_548, 897_082_112),
    "chessmarro": (16_246_241, 948_896_256),
    "chessmarro-12": (23_381_057, 1_855_160_832),
    "bishop": (3_142_961, 120_553_728),
    "alphazero19": (23_103_308, 2_952_462_848),
    "chess-policy": (1_105_610, 140_892_224),
    "chess-policy-only": (1_102_409, 140_623_872),
    "self-learning": (591_010, 58_876_160),
}
"""Parameters and FLOP per position of each preset, as `model.costs.size` counts them in four seconds with torch; a test
compares them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Presets(Common):
    """List the networks: view, move vocabulary, parameters, FLOP per position, and with --measure their speed here."""

    arguments: ClassVar = {"presets": "[PRESET...]"}
    basic: ClassVar = ("measure", "seconds", "batch_size", "device")

    presets: tuple[str, ...] = ()
    """Presets to list; all when none is named."""
    measure: bool = False
    """Measure positions per second on this machine, which takes minutes for all presets."""
    seconds: float = 1.0
    """Shortest time of each measurement in seconds; a step of the largest network may take longer."""
    batch_size: int = 64
    """Positions in a training step and in a call of the evaluator."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= 3600 or not 2 <= self.batch_size <= 1 << 20:
            raise UserError("seconds must be from 0 to 3600, and batch_size from 2 to 1048576")

    def run(self) -> dict[str, Any]:
        """List and measure."""
        from model.network.presets import preset, presets

        chosen = [preset(name) for name in self.presets] or list(presets().values())
        rows: list[dict[str, Any]] = []
        with bar("presets") as progress:
            for row in chosen:
                size = dict(zip(("parameters", "flops"), SIZES[row.name], strict=True))
                entry: dict[str, Any] = {"preset": row.name, "view": row.view, "moves": row.moves, **size}
                if self.measure:
                    from model.costs import rates

                    measured = rates(row, batch_size=self.batch_size, seconds=self.seconds, device=self.device)
                    entry |= {f"{name}_positions_per_second": round(value, 1) for name, value in measured.items()}
                rows.append(entry)
                if self.measure:
                    progress(Tick(len(rows), len(chosen), "presets"))
        result: dict[str, Any] = {"presets": rows}
        note = "a multiply-add is two FLOP"
        if self.measure:
            import torch

            result |= {"threads": torch.get_num_threads(), "batch_size": self.batch_size}
            note += f"; positions per second in batches of {self.batch_size} on {result['threads']} threads"
        return result if self.json else result | {"text": f"{table(rows)}\n\n{note}"}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the list as aligned columns."""
    from pipeline.evaluation.render import aligned

    header = ["preset", "view", "moves", "parameters", "MFLOP/position", "training/s", "inference/s"]
    cells = [
        [
            *(row[name] for name in header[:3]),
            f"{row['parameters']:,}",
            f"{row['flops'] / 1e6:,.1f}",
            *(f"{value:,.0f}" for name, value in row.items() if name.endswith("_per_second")),
        ]
        for row in rows
    ]
    return aligned(header[: len(cells[0])], cells)


@dataclass(frozen=True, kw_only=True, slots=True)
class Export(Common):
    """Export a checkpoint to ONNX; the file is compared with torch on 1,000 positions before it is published."""

    basic: ClassVar = ("checkpoint", "out", "positions", "int8")

    checkpoint: Path
    """Directory of the checkpoint."""
    out: Path | None = None
    """File to write; the default is model.onnx in the checkpoint's directory, where players look for it."""
    positions: Path | None = None
    """Dataset whose test positions are compared; the default is positions of random games."""
    int8: bool = False
    """Write convolutions in 8-bit integers: fianchetto-human then evaluates about twice as many positions a second on a
    processor, and its expected scores are off by one or two percentage points. A transformer gains nothing. Give --positions
    too: activations are scaled on its train positions; without it, random games stand for real ones."""

    def run(self) -> dict[str, Any]:
        """Return the file and the largest differences."""
        from pipeline.training.export import export_checkpoint

        if self.out is not None:
            _admit(self.out)
        require_folder((self.out or self.checkpoint / "model.onnx").parent)
        with bar("export") as progress:
            said = export_checkpoint(
                self.checkpoint, self.out, positions=self.positions, int8=self.int8, progress=progress
            )
        differ = f"at most {said['largest_policy_difference']:.1e} nats of a move's log-probability"
        differ += f" and {said['largest_value_difference']:.1e} of a chance of win, draw or loss"
        if self.int8:
            differ = f"{said['policy_divergence']:.1e} nats in the policy (mean Kullback-Leibler divergence)"
            differ += f" and {said['score_difference']:.1e} in the expected score (root mean square)"
        text = f"{said['out']}: {said['bytes'] / 1e6:.1f} MB; on {said['positions']} positions it differs by {differ}"
        following = command("uci", "--checkpoint", self.checkpoint)
        return said | {"text": f"{text}\n{following}"}


def _admit(out: Path) -> None:
    """Raise ConfigError unless `out` ends in .onnx and lies in a checkpoint's folder or one that is not ours."""
    if out.suffix != ".onnx":
        raise ConfigError(f"{out} is not the name of an ONNX file: let it end in .onnx")
    for kind in KINDS:
        if kind is not CHECKPOINT and is_of(out.parent, kind):
            raise ConfigError(f"{out.parent} is {kind.name}: choose another directory")
