"""A server of HTTP in a thread, with TLS or without: what plays Flower's server, or the door before it."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serving(port: int, handler: type[BaseHTTPRequestHandler], certificate: Path | None) -> Iterator[None]:
    """Answer at a port of this machine. Beside `name.crt` lies `name.key`; without a certificate there is no TLS."""
    running = ThreadingHTTPServer(("127.0.0.1", port), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        running.socket = context.wrap_socket(running.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=running.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        running.shutdown()
        thread.join()
        running.server_close()
