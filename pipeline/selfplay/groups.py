"""Groups of games side by side in threads: while one group's batch is with the evaluator, another group walks its trees.

The trees' kernels let go of Python's lock, as a network does while it computes, so two groups keep both busy.
"""

from collections.abc import Generator, Iterator, Sequence
from queue import Empty, Queue
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 1.0
"""Seconds after which a None says that nothing has come."""


def side_by_side(groups: Sequence[Iterator[T]], over: Event) -> Generator[T | None, None, None]:
    """Run each iterator in a thread of its own and return what they give, as it comes; None when nothing does for a while.

    What one of them raises is raised here, once the others have ended. `over` is set when one has raised something or nobody
    listens any more: the iterators are to look at it.
    """
    given: Queue[tuple[T | None, BaseException | None, bool]] = Queue()

    def run(group: Iterator[T]) -> None:
        fault = None
        try:
            for item in group:
                given.put((item, None, False))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever listens
            fault = error
            over.set()
        given.put((None, fault, True))

    threads = [Thread(target=run, args=(group,), name="self-play group", daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    going = len(threads)
    faults: list[BaseException] = []
    try:
        while going:
            try:
                item, fault, ended = given.get(timeout=PATIENCE)
            except Empty:
                yield None
                continue
            if ended:
                going -= 1
                faults += [fault] if fault is not None else []
            else:
                yield item
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if faults:
        raise faults[0]
