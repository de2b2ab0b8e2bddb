"""A checkpoint as an evaluator and as a player, by torch or as ONNX."""
