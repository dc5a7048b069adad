"""What a command prints or writes: rows as JSON, CSV, tables or templates, to stdout or into a file; progress."""
