"""One module for each command of `mqstore`, loaded when that command is called."""
