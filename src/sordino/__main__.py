"""The `sordino` command, also as `python -m sordino`."""

import gc
import sys

from sordino.parts.lazy import loading


def main() -> None:
    """Run the command that was given."""
    try:
        with loading():
            from sordino.cli import app
        app()
    except KeyboardInterrupt:  # one that comes while the command ends
        sys.exit(130)
    finally:
        gc.freeze()  # Python ends sooner where it does not look for garbage first


if __name__ == "__main__":
    main()
