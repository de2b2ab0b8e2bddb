"""What lies in a dataset's folder: names, schemas, shards written and read, and whose a file is."""
