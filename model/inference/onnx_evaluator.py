"""Evaluate positions with an exported network, using onnxruntime.

torch is not imported, so a player starts within a second. The file's metadata hold the columns that
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
from model.card import CARD_FILE, ONNX, Exported, FileEntry, Openings, read_book
from model.inference.columns import (
    Answer,
    Corrections,
    Rows,
    evaluate_in_batches,
    fill_columns,
    read_corrections,
)

METADATA = "fianchetto"
"""Key of the JSON entry in the file's metadata."""
MAX_FILE_BYTES = 1 << 30
"""Maximum file size in bytes; the largest preset, fianchetto-l, has 0.1 GB."""


class OnnxError(UserError):
    """The file is not an exported network that this version can use."""


class OnnxEvaluator:
    """An `engine.evaluation.evaluator.Evaluator` that runs an exported network on packed planes."""

    def __init__(self, path: Path, *, threads: int = 1, sha256: str | None = None) -> None:
        """Open a file written by `fianchetto export`. Raises OnnxError.

        With `sha256`, a file with another hash is refused before onnxruntime reads it. If the
        network reads move features, each thread evaluates part of a batch; otherwise all threads
        work on each operation together.
        """
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as native

        data = _read(path, sha256)
        self.sha256 = hashlib.sha256(data).hexdigest()
        self._path = path
        names = "Fail InvalidArgument InvalidGraph InvalidProtobuf NotImplemented RuntimeException"
        self._refusals: Any = tuple(getattr(native, name) for name in names.split())

        def open_session(threads: int) -> Any:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
            cpu = ["CPUExecutionProvider"]
            try:
                return onnxruntime.InferenceSession(data, options, providers=cpu)
            except self._refusals as error:
                raise OnnxError(
                    f"{path} cannot be opened as an ONNX network: {safe_text(str(error), 200)}"
                ) from error

        self.session, self.threads = open_session(threads), threads
        self.card = _read_metadata(path, self.session)
        self.columns: dict[str, int] = dict(self.card["columns"])
        """Default value of each column that the network reads."""
        self.corrections: Corrections = {}
        """Search corrections of the policy (engine/search/human.py)."""
        self.book: dict[str, chess.Move] = {}
        """Openings that the imitated player always plays, by EPD."""
        self.pool: ThreadPoolExecutor | None = None
        self.names = {given.name for given in self.session.get_inputs()}
        if "moves" in self.names and threads > 1:
            # onnxruntime's own threads race when two add to the same square:
            # microsoft/onnxruntime#18048
            self.session, self.pool = open_session(1), ThreadPoolExecutor(threads, "rows")

    def __call__(
        self, planes_BP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]] | None = None
    ) -> Answer:
        """Return logits and win, draw, loss, as `NetworkEvaluator` does.

        Raises OnnxError and AnswerError.
        """
        rows = fill_columns(planes_BP, columns or {}, self.columns)
        return evaluate_in_batches(self._run, rows, str(self._path))

    def inputs(self, rows: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the graph's inputs for a batch, by name: planes as bytes, columns as int64."""
        columns = fill_columns(rows["planes"], rows, self.columns)
        read: Rows = {name: np.asarray(columns[name], dtype=np.int64) for name in self.columns}
        read["planes"] = _bytes(rows["planes"])
        if "attacks" in self.names:
            read["attacks"] = _bytes(attack_planes(rows["planes"]))
        return read | (legal_move_features(rows["planes"]) if "moves" in self.names else {})

    def _run(self, rows: Rows) -> Any:
        count = len(rows["planes"])
        # at least two rows per thread: a single row may be rounded differently
        share = min(self.threads, count // 2)
        if self.pool is None or share < 2:
            return self._on_one_thread(rows)
        bounds = [count * part // share for part in range(share + 1)]
        parts = [
            {name: column[first:last] for name, column in rows.items()}
            for first, last in pairwise(bounds)
        ]
        answers = list(self.pool.map(self._on_one_thread, parts))
        return tuple(np.concatenate(columns) for columns in zip(*answers, strict=True))

    def _on_one_thread(self, rows: Rows) -> Any:
        try:
            logits_BL, wdl_B3 = self.session.run(None, self.inputs(rows))
        # ValueError: the graph's inputs or outputs are not those of an exported network
        except (*self._refusals, ValueError) as error:
            raise OnnxError(
                f"{self._path} cannot be run ({safe_text(str(error), 200)}): export it again"
            ) from error
        return logits_BL, wdl_B3


def _read_metadata(path: Path, session: Any) -> dict[str, Any]:
    """Return an exported network's metadata; OnnxError if this version cannot use it."""
    text = session.get_modelmeta().custom_metadata_map.get(METADATA)
    if text is None:
        raise OnnxError(f"{path} was not written by `fianchetto export`")
    try:
        card: dict[str, Any] = parse_json(text)
    except ValueError as error:
        raise OnnxError(f"{path}: metadata is not JSON: {safe_text(str(error), 200)}") from error
    validate_content(path, card, Exported, OnnxError, hint=": export it again")
    if (card["encoding_version"], card["moves_hash"]) != (ENCODING_VERSION, moves_hash()):
        raise OnnxError(f"{path} was exported for different planes or labels: export it again")
    if card["move_features_version"] not in (0, MOVE_FEATURES_VERSION):
        raise OnnxError(
            f"{path} was exported for a different version of the move features: train the network "
            "again"
        )
    return card


def _read(path: Path, sha256: str | None) -> bytes:
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


def _bytes(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return packed planes `[..., P]` as bytes `[..., P, 8]`."""
    return np.ascontiguousarray(words, dtype="<u8").view(np.uint8).reshape(*words.shape, 8)


def open_export(directory: Path, *, threads: int = 1) -> OnnxEvaluator:
    """Open the exported network beside a checkpoint's card; OnnxError if there is none."""
    found = find_export(directory, threads=threads)
    if found is None:
        named = f"{CARD_FILE} lists no {ONNX} for these weights"
        why = named if (directory / ONNX).exists() else f"there is no {ONNX}"
        raise OnnxError(
            f"{directory}: {why}; create it with `fianchetto export --int8 --checkpoint "
            f"{directory} --positions DATASET`"
        )
    return found


def find_export(directory: Path, *, threads: int = 1) -> OnnxEvaluator | None:
    """Open the exported network beside a checkpoint's card; None if there is none.

    Raises OnnxError if the file is not the one that the card lists. From 64 rows on, torch in bf16
    is faster than a float32 export on processors with fast bf16; an 8-bit export is always faster.
    """
    if not (directory / ONNX).exists():
        return None
    try:
        card = read_json(directory / CARD_FILE, OnnxError)
        weights, entry = card["files"]["weights"]["sha256"], card["files"]["onnx"]
    # loading the checkpoint reports the card's error
    except (OnnxError, OSError, KeyError, TypeError):
        return None
    validate_content(directory / CARD_FILE, entry, FileEntry, OnnxError)
    found = OnnxEvaluator(directory / ONNX, threads=threads, sha256=entry["sha256"])
    if found.card["weights_sha256"] != weights:
        raise OnnxError(
            f"{directory / ONNX} was not exported from the weights in {CARD_FILE}: export it again"
        )
    found.corrections = read_corrections(directory / CARD_FILE, card, OnnxError)
    validate_content(directory / CARD_FILE, card, Openings, OnnxError)
    found.book = read_book(card)
    return found
