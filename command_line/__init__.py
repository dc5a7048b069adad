"""The `mqstore` command: the contents, messages and lag of a store, what a node must import; no Spark, no broker."""
