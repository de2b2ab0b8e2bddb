"""An exported network as an evaluator, run by onnxruntime: no torch is imported, so a player is ready at once.

The file says for itself what it is: its metadata name the columns that it reads beside the planes with what stands for
unknown, the encoding, the version of the facts of moves where it is told them (they are counted here), and the checkpoint's
weights that it was made of.

Axes: B batch, P plane (77), L label (4096).
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.inferred import SUPPOSED, inferred
from engine.encoding.planes import ENCODING_VERSION, LABELS, PIECE_PLANES, moves_hash
from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.move_features import FACTS_VERSION, facts_of
from engine.json_files import check, parse_json, read_json, shown
from model.card import Exported

NAME = "model.onnx"
"""What an exported network is called in its checkpoint's folder."""
METADATA = "fianchetto"
"""Under this name the file holds its JSON."""
LARGEST_BATCH = 2048
LONGEST_HISTORY = 64
"""Positions before that a network may read."""


class OnnxError(UserError):
    """A file that is no network of ours, or nothing to run it with."""


class OnnxEvaluator:
    """An exported network called on packed planes; an `engine.evaluation.evaluator.Evaluator`."""

    def __init__(self, path: Path, *, threads: int = 1, known: Mapping[str, int] | None = None) -> None:
        """Open a file that `fianchetto export` wrote; `known` gives ratings or clocks for every row. Raises OnnxError.

        A network that is told facts of moves takes one thread, however many are offered.
        """
        if importlib.util.find_spec("onnxruntime") is None:
            raise OnnxError("onnxruntime is not installed: pip install onnxruntime")
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as native

        refusals = (native.Fail, native.InvalidArgument, native.InvalidGraph, native.InvalidProtobuf, native.NoSuchFile)

        def opened(threads: int) -> Any:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
            try:
                return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            except refusals as error:
                raise OnnxError(f"{path} cannot be opened as an ONNX network: {error}") from error

        self.session = opened(threads)
        said = self.session.get_modelmeta().custom_metadata_map.get(METADATA)
        if said is None:
            raise OnnxError(f"{path} was not written by `fianchetto export`")
        try:
            self.card: dict[str, Any] = parse_json(said)
        except ValueError as error:
            raise OnnxError(f"{path} has metadata that are not JSON: {shown(str(error), 200)}") from error
        check(path, self.card, Exported, OnnxError, hint=": export it again")
        if not 0 <= self.card["columns"].get("history", 0) <= LONGEST_HISTORY:
            raise OnnxError(f"{path} reads a history of {self.card['columns']['history']} positions: export it again")
        if (self.card["encoding_version"], self.card["moves_hash"]) != (ENCODING_VERSION, moves_hash()):
            raise OnnxError(f"{path} was exported for other planes or labels than this version's: export it again")
        self.told = self.card.get("facts_version", 0)
        if self.told not in (0, FACTS_VERSION):
            raise OnnxError(f"{path} was exported for other facts of moves than this version's: train it again")
        if self.told and threads > 1:  # onnxruntime's threads add to one square at once: microsoft/onnxruntime#18048
            self.session = opened(1)
        self.columns: dict[str, int] = dict(self.card["columns"])
        self._path = path
        self.know(known or {})

    def know(self, known: Mapping[str, int]) -> None:
        """Have these ratings or clocks for every row from now on; raises OnnxError for what the network does not read."""
        for name, value in known.items():
            if name not in self.columns:
                can = ", ".join(self.columns) or "planes alone"
                raise OnnxError(f"{self._path} cannot be told {name!r}: it reads {can}")
            self.columns[name] = value

    def __call__(
        self, planes_BP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Give logits float32 `[B, 4096]` by the labels of the mover's view, and float32 `[B, 3]` win, draw, loss.

        Columns that the network reads and that are not given are what planes tell, or unknown.
        """
        rows = self._rows(planes_BP, columns or {})
        parts = [
            self._run(planes_BP[at : at + LARGEST_BATCH], {name: rows[name][at : at + LARGEST_BATCH] for name in rows})
            for at in range(0, len(planes_BP), LARGEST_BATCH)
        ]
        if not parts:
            return np.empty((0, LABELS), np.float32), np.empty((0, 3), np.float32)
        if len(parts) == 1:
            return parts[0][0], parts[0][1]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _run(self, planes_BP: NDArray[np.uint64], rows: dict[str, NDArray[Any]]) -> Any:
        """Run the network on one batch; the facts of its moves are worked out for it here."""
        return self.session.run(None, rows | (facts_of(planes_BP) if self.told else {}))

    def _rows(self, planes_BP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Put together what the file reads: planes as bytes `[B, 77, 8]`, history likewise, other columns int64 `[B]`."""
        known = dict(columns)
        if any(name in SUPPOSED and name not in known for name in self.columns):
            known = inferred(planes_BP) | known
        rows = {"planes": _bytes(planes_BP)}
        for name, unknown in self.columns.items():
            if name == "history":
                past = known.get(name, np.zeros((len(planes_BP), unknown, PIECE_PLANES), np.uint64))
                rows[name] = _bytes(past)
            else:
                rows[name] = np.asarray(known.get(name, np.full(len(planes_BP), unknown)), dtype=np.int64)
        return rows


def _bytes(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Show packed planes `[..., P]` as bytes `[..., P, 8]`."""
    return np.ascontiguousarray(words, dtype="<u8").view(np.uint8).reshape(*words.shape, 8)


def exported(directory: Path, *, threads: int = 1, known: Mapping[str, int] | None = None) -> OnnxEvaluator | None:
    """Open the exported network beside a checkpoint's card.

    None when there is none, it is of other weights than the card's, or onnxruntime is not installed.
    """
    if not (directory / NAME).exists() or importlib.util.find_spec("onnxruntime") is None:
        return None
    try:
        weights = read_json(directory / "checkpoint.json", OnnxError)["files"]["weights"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    found = OnnxEvaluator(directory / NAME, threads=threads)
    if found.card["weights_sha256"] != weights:
        return None
    found.know(known or {})
    return found


def quick_evaluator(directory: Path, *, known: Mapping[str, int] | None = None) -> Evaluator:
    """Give the evaluator of a checkpoint that answers soonest on a processor, for a player of one game.

    An exported network starts in a fifth of the time of torch and is faster on small batches: one row in 0.7 ms of a
    core, torch 2.5 ms (fianchetto-xs). From 64 rows on, torch is the faster where the processor has bf16, so those who
    search many games at once take `model.inference.evaluator.evaluator`. It is also what is given where nothing was exported.
    Raises CheckpointError.
    """
    found = exported(directory, known=known)
    if found is not None:
        return found
    from model.inference.evaluator import evaluator

    return evaluator(directory, device="cpu", known=known)
