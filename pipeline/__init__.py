"""From a PGN dump to shards, batches, a trained network and its report."""

# sets Numba's cache folder, so it must come before the first import of Numba
import engine  # noqa: F401
