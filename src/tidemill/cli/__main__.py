"""``python -m tidemill.cli``: the same as the command ``tidemill``."""

from tidemill.cli.main import main

main()
