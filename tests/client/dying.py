"""A client's process that is killed after its first answer was recorded, and before it is sent."""

import os
import signal
import sys

from sordino.client.core import Client
from sordino.client.frames import Request, Response, What
from sordino.client.service import Service


class DyingService(Service):
    """Answers everything but reports; the first of these is its end."""

    def respond(self, request: Request) -> Response:
        response = super().respond(request)
        if request.what is What.STEP and response.fine:
            os.kill(os.getpid(), signal.SIGKILL)
        return response


if __name__ == "__main__":
    with Client.open(sys.argv[1]) as client:
        DyingService(client, sys.argv[2]).serve()
