"""The command line: ``wink``."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run ``wink``; if a package that it needs is missing, say how to install it."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("weakincentives"):
            raise
        sys.exit(f"wink needs the package {error.name}: pip install 'weakincentives[cli]'")
    sys.exit(run())
