"""Commands on networks: presets, export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline.cli.commands.base import Common
from pipeline.cli.endings import next_command
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
"""Parameters and FLOP per position of each preset. `model.costs.size` counts them in four seconds; a test compares them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Presets(Common):
    """List the networks: view, move vocabulary, parameters, and FLOP per position."""

    arguments: ClassVar = {"presets": "[PRESET...]"}

    presets: tuple[str, ...] = ()
    """Presets to list; all when none is named."""

    def run(self) -> dict[str, Any]:
        """Return the list."""
        from model.network.presets import preset, presets
        from pipeline.evaluation.render import aligned

        rows: list[dict[str, Any]] = []
        for row in [preset(name) for name in self.presets] or list(presets().values()):
            parameters, flops = SIZES[row.name]
            rows.append(
                {"preset": row.name, "view": row.view, "moves": row.moves, "parameters": parameters, "flops": flops}
            )
        cells = [
            [row["preset"], row["view"], row["moves"], f"{row['parameters']:,}", f"{row['flops'] / 1e6:,.1f}"]
            for row in rows
        ]
        table = aligned(["preset", "view", "moves", "parameters", "MFLOP/position"], cells)
        return {"presets": rows} if self.json else {"text": f"{table}\n\na multiply-add is two FLOP"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Export(Common):
    """Export a checkpoint to ONNX; the file is compared with torch on 1,000 positions before it is published."""

    basic: ClassVar = "checkpoint out positions int8"

    checkpoint: Path
    """Directory of the checkpoint."""
    out: Path | None = None
    """File to write; the default is model.onnx in the checkpoint's directory, where players look for it."""
    positions: Path | None = None
    """Dataset whose test positions are compared; the default is positions of random games."""
    int8: bool = False
    """Write convolutions in 8-bit integers: about twice as fast on a CPU. Expected scores change by one or two percentage
    points, and a transformer gains nothing. Give --positions too: activations are scaled on its train positions."""

    def run(self) -> dict[str, Any]:
        """Return the file and the largest differences."""
        from pipeline.training.export import export_checkpoint

        if self.out is not None:
            _require_onnx_name(self.out)
        require_folder((self.out or self.checkpoint / "model.onnx").parent)
        with bar("export") as progress:
            written = export_checkpoint(
                self.checkpoint, self.out, positions=self.positions, int8=self.int8, progress=progress
            )
        differ = f"at most {written['largest_policy_difference']:.1e} nats of a move's log-probability"
        differ += f" and {written['largest_value_difference']:.1e} of a chance of win, draw or loss"
        if self.int8:
            differ = f"{written['policy_divergence']:.1e} nats in the policy (mean Kullback-Leibler divergence)"
            differ += f" and {written['score_difference']:.1e} in the expected score (root mean square)"
        text = f"{written['out']}: {written['bytes'] / 1e6:.1f} MB; on {written['positions']} positions it differs by {differ}"
        following = next_command("uci", "--checkpoint", self.checkpoint)
        return written | {"text": f"{text}\n{following}"}


def _require_onnx_name(out: Path) -> None:
    """Raise ConfigError unless `out` ends in .onnx and its folder is a checkpoint or holds no other product."""
    if out.suffix != ".onnx":
        raise ConfigError(f"{out}: the name of an ONNX file must end in .onnx")
    for kind in KINDS:
        if kind is not CHECKPOINT and is_of(out.parent, kind):
            raise ConfigError(f"{out.parent} is {kind.name}: choose another directory")
