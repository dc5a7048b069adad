"""Erlang's own formats."""
