"""Fine-tune a checkpoint in generations: search positions, train a candidate, gate, measure."""
