"""Errors that a user caused and can correct."""

from collections.abc import Iterable


class UserError(ValueError):
    """Its message says in one line what was wrong and what to do about it.

    The command line prints it and exits 2; anything else that is raised is a bug of ours.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: the nearest known one, and all of them."""
    from difflib import get_close_matches

    names = list(known)
    return f"did you mean {get_close_matches(name, names, n=1, cutoff=0.0)[0]!r}? There are {', '.join(names)}"
