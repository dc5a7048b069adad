"""The Spark connector: options, schemas, planning and reading of `format("mqstore")`. Nothing here opens a file."""
