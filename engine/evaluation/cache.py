"""An LRU cache in front of an evaluator.

The key is a 128-bit hash of the evaluator's input, the 77 planes. A record holds win, draw and
loss, and the logits of the legal labels.

Axes: B rows, M rows that missed, P planes, A labels, W outcomes.
"""

from collections import OrderedDict
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import LABELS, legal_mask
from engine.evaluation.evaluator import Evaluator

KEY_BYTES = 16
WDL_BYTES = 12
RECORD_BYTES = 350
"""Bytes per position: a record of 37 legal moves (more than the average), the key, and Python's
overhead."""


class CachedEvaluator:
    """An Evaluator that calls another one only for rows not in its cache; not thread-safe."""

    def __init__(self, evaluator: Evaluator, mebibytes: int = 64) -> None:
        """Put a cache of about `mebibytes` (2**20 bytes) in front of an evaluator."""
        self.evaluator = evaluator
        """Called for missing rows; its result must depend on the row alone."""
        self.capacity = (mebibytes << 20) // RECORD_BYTES
        self._records: OrderedDict[bytes, bytes] = OrderedDict()
        self._logits_BA = np.zeros((0, LABELS), dtype=np.float32)

    def __call__(
        self, planes_BP: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return logits float32[B, 4096] and wdl float32[B, 3], mover's view.

        Results are bit-identical to the evaluator's. Only logits of legal labels are defined. The
        next call reuses their memory, since allocation costs more than the look-up.
        """
        keys = [
            blake2b(row, digest_size=KEY_BYTES).digest()
            for row in np.ascontiguousarray(planes_BP, dtype="<u8")
        ]
        missing: dict[bytes, int] = {}
        for row, key in enumerate(keys):
            if key in self._records:
                self._records.move_to_end(key)
            else:
                missing.setdefault(key, row)
        legal_BA = legal_mask(planes_BP)
        if missing:
            rows = list(missing.values())
            self._records.update(
                zip(missing, self._evaluate(planes_BP[rows], legal_BA[rows]), strict=True)
            )
        records = [self._records[key] for key in keys]
        while len(self._records) > self.capacity:
            self._records.popitem(last=False)
        if len(keys) > len(self._logits_BA):
            self._logits_BA = np.zeros((len(keys), LABELS), dtype=np.float32)
        logits_BA = self._logits_BA[: len(keys)]
        logits_BA[legal_BA] = np.frombuffer(
            b"".join(record[WDL_BYTES:] for record in records), dtype=np.float32
        )
        wdl_BW = np.frombuffer(
            b"".join(record[:WDL_BYTES] for record in records), dtype=np.float32
        ).reshape(-1, 3)
        return logits_BA, wdl_BW

    def _evaluate(self, planes_MP: NDArray[np.uint64], legal_MA: NDArray[np.bool_]) -> list[bytes]:
        """Return the records of rows: win, draw and loss, and logits of legal labels."""
        logits_MA, wdl_MW = self.evaluator(planes_MP)
        wdl = np.asarray(wdl_MW, dtype=np.float32).tobytes()
        logits = np.asarray(logits_MA, dtype=np.float32)[legal_MA].tobytes()
        ends = (4 * np.cumsum(legal_MA.sum(axis=1))).tolist()
        return [
            wdl[WDL_BYTES * row : WDL_BYTES * (row + 1)] + logits[start:end]
            for row, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
        ]
