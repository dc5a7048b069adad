"""`python -m command_line` is the command `mqstore` without an installation."""

from command_line.main import main

main(prog_name="mqstore")
