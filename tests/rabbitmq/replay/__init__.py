"""Runs a script of queue operations and prints the state after each."""
