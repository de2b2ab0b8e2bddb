"""Train on own games in the UI, step by step: dump, training set, checkpoint, report."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.defs.resources import parse_dump_key
from pipeline.defs.ui import CODE_LOCATION
from tests.pipeline.defs.served.browser import find_visible, launch, open_page, read_picture_widths
from tests.pipeline.defs.served.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

Keep = Callable[[str, bytes], None]
WIDTH = 1440
"""Width in pixels of a window in which no page may be cut off."""


def take_first_hour(
    page: "Page",
    server: Server,
    datasets: Path,
    dump: Path,
    preset: str,
    minutes: float,
    keep: Keep,
) -> None:
    """Do all steps, check each page, and pass screenshots to `keep`."""
    key = parse_dump_key(dump)
    assert key is not None
    page.set_viewport_size({"width": WIDTH, "height": 900})
    shutil.copy(dump, datasets / "dumps" / dump.name)
    copied_at = time.monotonic()
    while True:
        open_page(page, server, "/assets/positions?view=partitions", "Metadata")
        if find_visible(page, key).count():
            break
        assert time.monotonic() - copied_at < 60, f"{key} is not listed within a minute"
        page.wait_for_timeout(2000)
    keep("dump-listed.png", page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": 480}))
    jobs = f"locations/{CODE_LOCATION}/jobs"
    server.wait_until_ended(launch(page, server, "build_positions", partition=key, folder=jobs))
    open_page(
        page, server, f"/assets/positions?view=partitions&partition={key}", "sample_of_positions"
    )
    assert read_picture_widths(page, "sample_of_positions") == [165] * 6
    assert read_picture_widths(page, "elo")[0] > 370

    config = f"ops:\n  training_set:\n    config:\n      positions: [{key}]\n      name: mine\n"
    run = launch(page, server, "training_set", config, keep=partial(keep, "datasets-chosen.png"))
    server.wait_until_ended(run)
    open_page(page, server, "/assets/training_set", "test_positions_in_train")
    require_uncut(page)
    assert page.locator(f'li:has-text("{key}: games of") >> visible=true').count(), (
        "the datasets that were joined"
    )

    network = f"preset: {preset}, name: mine, minutes: {minutes}, more: {{threads: 1}}"
    config = f"ops: {{checkpoint: {{config: {{{network}}}}}}}"
    server.wait_until_ended(launch(page, server, "checkpoint", config), seconds=60 * minutes + 300)
    open_page(page, server, "/assets/checkpoint", "curves")
    assert read_picture_widths(page, "curves") == [384]
    require_uncut(page)
    keep("checkpoint.png", take_metadata(page))

    report = launch(page, server, "accuracy_report", "ops: {accuracy_report: {config: {}}}")
    server.wait_until_ended(report, seconds=600)
    open_page(page, server, "/assets/accuracy_report", "headline")
    assert read_picture_widths(page, "boards") == [165] * 3
    assert read_picture_widths(page, "accuracy")[0] > 370
    require_uncut(page)
    keep("accuracy.png", take_metadata(page))
    with page.context.expect_page() as opened:
        page.locator('a[href="/reports/mine/mine/report.html"] >> visible=true').first.click()
    assert "test split of mine" in opened.value.locator("p.headline + p").inner_text()
    opened.value.close()


def require_uncut(page: "Page") -> None:
    """Check that no picture or table of the metadata is cut off."""
    ends = page.evaluate("""[...document.querySelectorAll('td img, td table')]
        .filter(it => it.offsetParent).map(it => {
        const box = it.closest('[class*=ScrollContainer]')
        const edge = box ? box.getBoundingClientRect().right : innerWidth
        return Math.round(it.getBoundingClientRect().right - edge) })""")
    assert ends
    assert max(ends) <= 0, ends


def take_metadata(page: "Page") -> bytes:
    """Return a screenshot of the metadata, from a higher window."""
    page.set_viewport_size({"width": WIDTH, "height": 1500})
    box = find_visible(page, "Metadata").bounding_box()
    assert box is not None
    page.wait_for_timeout(2000)  # until the page has redrawn itself
    screenshot = page.screenshot(
        clip={"x": box["x"] - 32, "y": box["y"] - 12, "width": 820, "height": 980}
    )
    page.set_viewport_size({"width": WIDTH, "height": 900})
    return screenshot
