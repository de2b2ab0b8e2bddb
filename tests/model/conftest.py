"""Settings that tests of networks and their training share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Report every REPORT_STEPS steps of the test's module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "model.training.loop.REPORT_STEPS", getattr(request.module, "REPORT_STEPS", 50)
        )
        patch.setattr("model.training.loop.MIN_METRICS_LINES", 0.5)  # never by that
        yield
