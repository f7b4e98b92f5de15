"""The `sordino` command, also as `python -m sordino`."""

import gc

from sordino.parts.lazy import loading


def main() -> None:
    """Run the command that was given."""
    with loading():
        from sordino.cli import app
    try:
        app()
    finally:
        gc.freeze()  # Python ends sooner where it does not look for garbage first


if __name__ == "__main__":
    main()
