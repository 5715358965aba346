"""``python -m weakincentives.cli`` is ``wink``."""

from weakincentives.cli import main

main()
