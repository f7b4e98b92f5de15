"""The door of Flower's server: what nodes need gets through, and nothing else.

One port of Flower's serves nodes (`/v1/fleet/`) and operators (`/v1/control/`), the second without a password: whoever
reached it could start apps on the server and on every node, and register nodes. So Flower's server listens on its own
machine only. Members reach this door, which has the certificate, and hands on requests for the first alone; each is
read whole and written anew, so that no second request can hide in it. `nginx.conf` beside it does the same.
"""

from __future__ import annotations

from sordino.deploy.deployment import Deployment
from sordino.wire.tls_address import is_loopback

TITLE = "Sordino door"
PATH = "/v1/fleet/[a-z0-9-]{1,100}"  #: whole paths that are handed on
LARGEST = 2**25  #: bytes of a request: Flower's nodes send arrays in pieces of 5 MiB
WAITING = 300.0  #: seconds that Flower's server may take to answer


def listens_on(host: str) -> str:
    """Where the door is: a test on one machine stays on it, any other server is on all of its addresses."""
    if is_loopback(host):
        return "127.0.0.1" if host == "localhost" else host
    return "::" if ":" in host else "0.0.0.0"


def nginx_conf(deployment: Deployment) -> str:
    """The same door as a configuration of nginx, for operators who have one: give `nginx -c` this file.

    Paths are within the folder of the file, which is Flower's. The whole request line is looked at as it was sent:
    nginx compares locations with the path after it removed dots and slashes, and hands on the one before.
    """
    host = listens_on(deployment.host)
    listen = f"[{host}]:{deployment.port}" if ":" in host else f"{host}:{deployment.port}"
    return f"""# What nodes need, and nothing else. Start it in this folder, under Flower's account:
#     nginx -p "$PWD" -c nginx.conf -e nginx-error.log
# Then start everything but the door:
#     sordino deploy up .. --no-door
daemon off;
pid nginx.pid;
error_log nginx-error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path nginx-temp; proxy_temp_path nginx-temp; fastcgi_temp_path nginx-temp;
    uwsgi_temp_path nginx-temp; scgi_temp_path nginx-temp;
    client_max_body_size {LARGEST // 2**20}m;
    server {{
        listen {listen} ssl;
        server_name {deployment.host};
        ssl_certificate server.crt;
        ssl_certificate_key server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        if ($request !~ "^POST {PATH} HTTP/1[.][01]$") {{ return 404; }}
        location / {{
            proxy_pass https://{deployment.inner_address};
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate ca.crt;
            proxy_ssl_name localhost;  # it compares names, and no addresses
            proxy_read_timeout {WAITING:g}s;
        }}
    }}
}}
"""


__all__ = ["LARGEST", "PATH", "TITLE", "WAITING", "listens_on", "nginx_conf"]
