"""A machine's two sides as two containers: `compose.yaml` in its folder.

They have different accounts and share the folder `socket` and nothing else: an app that Flower runs finds no file of
the owner's side. The image is that of the repository's Dockerfile, which has both accounts.
"""

from __future__ import annotations

from sordino.deploy.deployment import CLIENT, COORDINATORS, FILE, FLOWER, LOGS, SERVER, SOCKETS, Deployment
from sordino.deploy.services import COORDINATOR
from sordino.wire.tls_address import is_loopback

COMPOSE = "compose.yaml"
MACHINE = "/machine"  #: where a machine's folder lies in a container
OWNER = "sordino"  #: the image's account for the owner's side; Flower's is called like its side


def compose(deployment: Deployment) -> str:
    """The file for the machine that a set-up's part belongs to."""
    if deployment.machine == SERVER:
        return _file(deployment, _SERVER_USE, COORDINATORS, _coordinator(), _network(deployment, serves=True))
    client = _client(deployment, deployment.machine)
    return _file(deployment, _CLIENT_USE, CLIENT, client, _network(deployment, serves=False))


_SERVER_USE = """#   docker compose up -d                     start it; it comes back after a crash and a restart
#   docker compose logs -f coordinator       rounds, as they end"""

_CLIENT_USE = f"""#   echo RECORDS=/srv/wards > .env           the folder of your records, which is only read
#   docker compose run --rm client deploy join {MACHINE} --data /records/wards.csv       agree, once
#   docker compose up -d                     start it; it comes back after a crash and a restart"""


def _file(deployment: Deployment, use: str, own: str, owner: str, network: str) -> str:
    readable = " ".join([FILE, *(each.invitation for each in deployment.federations_of(deployment.machine))])
    return f"""# The two sides of this machine as two containers, which share the folder {SOCKETS} and nothing else.
{use}
# The image: make image, in a clone of Sordino. The folders then belong to its accounts {OWNER} and {FLOWER}.
name: sordino-{_project(deployment.machine)}
x-side: &side
  image: "${{SORDINO_IMAGE:-sordino}}"
  restart: unless-stopped
  init: true
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  stop_grace_period: 30s
  depends_on: {{owners: {{condition: service_completed_successfully}}}}
services:
  owners:  # gives each side its folders, and ends
    image: "${{SORDINO_IMAGE:-sordino}}"
    user: root
    network_mode: none
    cap_drop: [ALL]
    cap_add: [CHOWN, DAC_OVERRIDE, FOWNER]
    entrypoint: [sh, -ec]
    command:
      - >-
        mkdir -p {own} {LOGS} {SOCKETS};
        chown -R {OWNER}:{OWNER} {own} {LOGS} {SOCKETS}; chown -R {FLOWER}:{FLOWER} {FLOWER};
        chmod 700 {own} {LOGS} {FLOWER}; chmod 711 {SOCKETS}; chmod a+r {readable}
    working_dir: {MACHINE}
    volumes: [".:{MACHINE}"]
{owner}
  {FLOWER}:
    <<: *side
    user: {FLOWER}
{network}    command: [deploy, up, {MACHINE}, --only, {FLOWER}, --account, {FLOWER}]
    volumes:
      - "./{FLOWER}:{MACHINE}/{FLOWER}"
      - "./{SOCKETS}:{MACHINE}/{SOCKETS}:ro"
      - "./{FILE}:{MACHINE}/{FILE}:ro"
"""


def _coordinator() -> str:
    return f"""  {COORDINATOR}:
    <<: *side
    user: {OWNER}
    group_add: [{FLOWER}]  # to whose group it opens its sockets
    network_mode: host  # it can be watched from this machine, and fetches data sets that have a name
    environment: {{XDG_CACHE_HOME: {MACHINE}/{COORDINATORS}/.cache}}
    command: [deploy, up, {MACHINE}, --only, {COORDINATOR}, --account, {FLOWER}, --stay]
    volumes:
      - "./{COORDINATORS}:{MACHINE}/{COORDINATORS}"
      - "./{LOGS}:{MACHINE}/{LOGS}"
      - "./{SOCKETS}:{MACHINE}/{SOCKETS}"
      - "./{FILE}:{MACHINE}/{FILE}:ro\""""


def _client(deployment: Deployment, member: str) -> str:
    federations = deployment.federations_of(member)
    invitations = "".join(f'\n      - "./{i}:{MACHINE}/{i}:ro"' for i in (each.invitation for each in federations))
    posts = any(each.shuffler for each in federations)
    alone = "" if posts else "    network_mode: none  # the socket is its only way out\n"
    return f"""  {CLIENT}:
    <<: *side
    user: {OWNER}
    group_add: [{FLOWER}]  # to whose group it opens its socket
{alone}    command: [deploy, up, {MACHINE}, --only, {CLIENT}, --account, {FLOWER}]
    volumes:
      - "./{CLIENT}:{MACHINE}/{CLIENT}"
      - "./{LOGS}:{MACHINE}/{LOGS}"
      - "./{SOCKETS}:{MACHINE}/{SOCKETS}"
      - "./{FILE}:{MACHINE}/{FILE}:ro"{invitations}
      - "${{RECORDS:-./records}}:/records:ro\""""


def _network(deployment: Deployment, *, serves: bool) -> str:
    """A set-up on one machine meets at its loopback, which containers do not share."""
    if is_loopback(deployment.host):
        return "    network_mode: host\n"
    return f'    ports: ["{deployment.port}:{deployment.port}"]\n' if serves else ""


def _project(machine: str) -> str:
    """A machine's name as Compose allows names."""
    return machine.lower().replace(".", "-")


__all__ = ["COMPOSE", "compose"]
