"""Files of a dataset's folder: names, columns, schemas, shards written and read."""
