"""What a run writes beside its weights: metrics, curves, provenance."""
