"""The common part of repairs for all engines: a copy to work on, and a backup of every byte that a repair cuts."""
