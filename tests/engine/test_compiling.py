"""The message that kernels are being compiled."""

import numba
import pytest

from engine import compiling


def test_compiling_is_announced_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling.log_compiling_once.cache_clear()
    monkeypatch.setattr(compiling.LOG, "propagate", True)

    @numba.njit
    def doubled(value: float) -> float:
        return value + value

    with compiling.announce_compiling():
        assert doubled(2) == 4
        assert doubled(2.5) == 5.0
        assert doubled(3) == 6
    assert [record.message for record in caplog.records] == [compiling.COMPILING_MESSAGE]
