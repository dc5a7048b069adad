"""The options of a read, and the parsers of option values, each with its exact error. Imports no engine."""
