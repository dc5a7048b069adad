"""Programs that the Makefile runs: environments and generated pages. Not part of the installed package."""
