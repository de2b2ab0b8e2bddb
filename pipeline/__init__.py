"""From a PGN dump to shards, batches, a trained network and its report."""

import engine  # noqa: F401 - says where kernels are cached, which Numba reads when it is imported, so before any module here
