"""The options of mqstore: their values parsed, each with its exact error. Knows no engine."""
