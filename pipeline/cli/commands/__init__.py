"""The commands of `fianchetto`: each is a dataclass with its options as fields."""
