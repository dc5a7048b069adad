"""The output of commands: rows as JSON, CSV, tables or templates, to stdout or to a file; progress."""
