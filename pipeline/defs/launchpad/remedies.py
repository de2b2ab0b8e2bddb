"""The library's messages name what to do on the command line; in the UI there are a launchpad and buttons instead."""

import re

REMEDIES = (
    (r"(wait for it)(?: or stop it)?,? or choose (?:another|a new) --out", r"\1 or stop it"),
    (
        r"(?:stop that, )?(?:delete it,? or )?choose (?:another|a new) (?:--out|directory)(?:, or remove it)?",
        "{otherwise}",
    ),
    (r"ingest the dump again", "materialise `positions` again with `replace: true`"),
    (r"delete it and ingest again", "materialise `positions` again with `replace: true`"),
    (
        r"run (?:it|the same command)? ?again to continue|run the same command to continue",
        "materialise it again to continue",
    ),
    (r"take it out with --remove (.+) first", r"name \1 in `remove`: it is taken out, and joined again as it is now"),
    (
        r"`fianchetto join --out .+ --remove (.+)` takes it out, and join puts it in again",
        "materialise `training_set` again",
    ),
    (r"`fianchetto join DATASET\.\.\. --out DIR` makes one", "materialise `training_set`"),
    (r"a dataset is made by `fianchetto ingest DUMP --out DIR`", "materialise `positions`"),
    (r"try fewer --workers", "try fewer `workers`"),
    (r"`fianchetto export .+` makes one", "search without the device onnx"),
    (r"export it without --int8, or give other --positions", "search without the device onnx"),
)
"""What the command line says, as a regular expression, and what the UI says instead."""


def in_ui(message: str, otherwise: str = "") -> str:
    """Return a message for people with the remedies that the UI has, and its options by the names that its forms have.

    `otherwise`: what to do there instead of choosing another folder; "" leaves that as it is.
    """
    for said, instead in REMEDIES:
        if "{otherwise}" not in instead:
            message = re.sub(said, instead, message)
        elif otherwise:
            message = re.sub(said, lambda found: otherwise, message)
    return re.sub(r"(?<![\w`-])--([a-z][a-z0-9-]+)", lambda found: f"`{found[1].replace('-', '_')}`", message)
