"""Files of a dataset: names, columns, schemas, reading and writing of shards."""
