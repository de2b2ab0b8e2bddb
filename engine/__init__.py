"""Chess as arrays: bitboards, legal-move planes, labels, encodings, evaluators."""
