"""Evaluate positions with an exported network, using onnxruntime.

torch is not imported, so a player starts within a second. The file's metadata has the columns that
the network reads besides the planes, with their defaults; the encoding; the version of the move
features, if any; and the hash of the checkpoint's weights.

Axes: B batch, P plane (77).
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.encoding.attacks import attack_planes
from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.errors import UserError
from engine.evaluation.move_features import MOVE_FEATURES_VERSION, legal_move_features
from engine.json_files import parse_json, read_json, safe_text, validate_content
from model.card import CARD_FILE, ONNX_FILE, BookEntry, ExportMetadata, FileEntry, read_book
from model.inference.columns import (
    Columns,
    Corrections,
    Outputs,
    evaluate_in_batches,
    fill_columns,
    read_corrections,
)

METADATA_KEY = "fianchetto"
"""Key of the JSON entry in the file's metadata."""
MAX_FILE_BYTES = 1 << 30
"""Maximum file size in bytes; the largest preset, fianchetto-l, has 0.1 GB."""


class OnnxError(UserError):
    """The file is not an exported network that this version can use."""


class OnnxEvaluator:
    """An `engine.evaluation.evaluator.Evaluator` that runs an exported network on packed planes."""

    def __init__(self, path: Path, *, threads: int = 1, sha256: str | None = None) -> None:
        """Open a file written by `fianchetto export`; raise OnnxError if it cannot be used.

        With `sha256`, a file with another hash is refused before onnxruntime reads it. If the
        network reads move features, each thread evaluates part of a batch; otherwise all threads
        work together on each operation.
        """
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as native

        data = _read_file(path, sha256)
        self.sha256 = hashlib.sha256(data).hexdigest()
        self._path = path
        names = "Fail InvalidArgument InvalidGraph InvalidProtobuf NotImplemented RuntimeException"
        self._session_errors: Any = tuple(getattr(native, name) for name in names.split())

        def open_session(threads: int) -> Any:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
            cpu = ["CPUExecutionProvider"]
            try:
                return onnxruntime.InferenceSession(data, options, providers=cpu)
            except self._session_errors as error:
                raise OnnxError(
                    f"{path} cannot be opened as an ONNX network: {safe_text(str(error), 200)}"
                ) from error

        self.session, self.threads = open_session(1), threads
        self.metadata = _read_metadata(path, self.session)
        self.columns: dict[str, int] = dict(self.metadata["columns"])
        """Default value of each column that the network reads."""
        self.corrections: Corrections = {}
        """Search corrections of the policy (engine/search/human.py)."""
        self.book: dict[str, chess.Move] = {}
        """Openings that the imitated player always plays, by EPD."""
        self.pool: ThreadPoolExecutor | None = None
        self.input_names = {graph_input.name for graph_input in self.session.get_inputs()}
        if threads > 1 and "moves" in self.input_names:
            # not onnxruntime's own threads, which race when two moves add to the same square:
            # microsoft/onnxruntime#18048
            self.pool = ThreadPoolExecutor(threads, "rows")
        elif threads > 1:
            self.session = open_session(threads)

    def __call__(
        self, planes_BP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]] | None = None
    ) -> Outputs:
        """Return logits and win, draw, loss, as a call of `NetworkEvaluator` does.

        Raises OnnxError and NetworkOutputError.
        """
        rows = fill_columns(planes_BP, columns or {}, self.columns)
        return evaluate_in_batches(self._evaluate, rows, str(self._path))

    def encode_inputs(self, rows: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the graph's inputs for a batch, by name: planes as bytes, columns as int64."""
        planes_BP = rows["planes"]
        columns = fill_columns(planes_BP, rows, self.columns)
        inputs: Columns = {name: np.asarray(columns[name], dtype=np.int64) for name in self.columns}
        inputs["planes"] = _to_bytes(planes_BP)
        if "attacks" in self.input_names:
            inputs["attacks"] = _to_bytes(attack_planes(planes_BP))
        return inputs | (legal_move_features(planes_BP) if "moves" in self.input_names else {})

    def _evaluate(self, rows: Columns) -> Any:
        count = len(rows["planes"])
        # at least two rows per thread: a single row may be rounded differently
        parts = min(self.threads, count // 2)
        if self.pool is None or parts < 2:
            return self._run_session(rows)
        bounds = [count * part // parts for part in range(parts + 1)]
        slices = [
            {name: column[first:last] for name, column in rows.items()}
            for first, last in pairwise(bounds)
        ]
        outputs = list(self.pool.map(self._run_session, slices))
        return tuple(np.concatenate(columns) for columns in zip(*outputs, strict=True))

    def _run_session(self, rows: Columns) -> Any:
        try:
            logits_BL, wdl_B3 = self.session.run(None, self.encode_inputs(rows))
        # ValueError: the graph's inputs or outputs are not those of an exported network
        except (*self._session_errors, ValueError) as error:
            raise OnnxError(
                f"{self._path} cannot be run ({safe_text(str(error), 200)}): export it again"
            ) from error
        return logits_BL, wdl_B3


def _read_metadata(path: Path, session: Any) -> dict[str, Any]:
    """Return an exported network's metadata; raise OnnxError if this version cannot use it."""
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is None:
        raise OnnxError(f"{path} was not written by `fianchetto export`")
    try:
        metadata: dict[str, Any] = parse_json(text)
    except ValueError as error:
        message = f"{path}: metadata is not JSON ({safe_text(str(error), 200)}): export it again"
        raise OnnxError(message) from error
    validate_content(path, metadata, ExportMetadata, OnnxError, hint=": export it again")
    if (metadata["encoding_version"], metadata["moves_hash"]) != (ENCODING_VERSION, moves_hash()):
        raise OnnxError(f"{path} was exported for different planes or labels: export it again")
    if metadata["move_features_version"] not in (0, MOVE_FEATURES_VERSION):
        raise OnnxError(
            f"{path} was exported for a different version of the move features: train the network "
            "again"
        )
    return metadata


def _read_file(path: Path, sha256: str | None) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise OnnxError(
                f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB: it is not an exported network"
            )
        data = path.read_bytes()
    except OSError as error:
        raise OnnxError(f"{path} cannot be opened as an ONNX network: {error.strerror}") from error
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise OnnxError(f"{path} does not match its hash in {CARD_FILE}: copy or export it again")
    return data


def _to_bytes(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return packed planes `[..., P]` as bytes `[..., P, 8]`."""
    return np.ascontiguousarray(words, dtype="<u8").view(np.uint8).reshape(*words.shape, 8)


def open_export(directory: Path, *, threads: int = 1) -> OnnxEvaluator:
    """Open the exported network that a checkpoint's card lists, or raise OnnxError."""
    evaluator = find_export(directory, threads=threads)
    if evaluator is None:
        unlisted = f"{CARD_FILE} lists no {ONNX_FILE} for these weights"
        reason = unlisted if (directory / ONNX_FILE).exists() else f"there is no {ONNX_FILE}"
        raise OnnxError(
            f"{directory}: {reason}; create it with `fianchetto export --int8 --checkpoint "
            f"{directory} --positions DATASET`"
        )
    return evaluator


def find_export(directory: Path, *, threads: int = 1) -> OnnxEvaluator | None:
    """Open the exported network that a checkpoint's card lists; return None if there is none.

    Raises OnnxError if the file is not the one that the card lists. An export in 8-bit integers is
    always faster than torch. A float32 export is slower than torch from 64 rows on, on processors
    with fast bf16.
    """
    if not (directory / ONNX_FILE).exists():
        return None
    try:
        card = read_json(directory / CARD_FILE, OnnxError)
        weights, entry = card["files"]["weights"]["sha256"], card["files"]["onnx"]
    # an invalid card is reported when the checkpoint is loaded
    except (OnnxError, OSError, KeyError, TypeError):
        return None
    validate_content(directory / CARD_FILE, entry, FileEntry, OnnxError)
    evaluator = OnnxEvaluator(directory / ONNX_FILE, threads=threads, sha256=entry["sha256"])
    if evaluator.metadata["weights_sha256"] != weights:
        raise OnnxError(
            f"{directory / ONNX_FILE} was not exported from the weights that {CARD_FILE} lists: "
            "export it again"
        )
    evaluator.corrections = read_corrections(directory / CARD_FILE, card, OnnxError)
    validate_content(directory / CARD_FILE, card, BookEntry, OnnxError)
    evaluator.book = read_book(card)
    return evaluator
