"""The `sordino` command, also as `python -m sordino`."""

import signal
import sys

from sordino.parts.lazy import loading


def main() -> None:
    """Run the command that was given."""
    try:
        with loading():
            from sordino.cli import app_for

            app = app_for(sys.argv[1] if len(sys.argv) > 1 else None)
        app()
    except KeyboardInterrupt:  # one that comes while the command ends
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: what comes now would end Python by the signal
        exec("")  # so would one that came while such text was executed, unless other text ends well


if __name__ == "__main__":
    main()
