"""Fixtures of the tests of networks and their training."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def report_every_n_steps(request: pytest.FixtureRequest) -> Iterator[None]:
    """Write a line of metrics every REPORT_STEPS steps, a constant of the test's module."""
    with pytest.MonkeyPatch.context() as patch:
        steps = getattr(request.module, "REPORT_STEPS", 50)
        patch.setattr("model.training.loop.REPORT_STEPS", steps)
        patch.setattr("model.training.loop.MIN_METRICS_LINES", 0.5)  # no further lines
        yield
