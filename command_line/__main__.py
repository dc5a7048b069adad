"""`python -m command_line` is the command `mqstore`, where nothing was installed."""

from command_line.main import main

main(prog_name="mqstore")
