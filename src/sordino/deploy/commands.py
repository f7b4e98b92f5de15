"""The commands that a set-up takes, machine by machine: for people to read, and for tests to run as they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from shlex import quote

from sordino.deploy.deployment import CLIENT, CONNECTION, KEY, SEALED_TO, SERVER, SOCKET, TOKEN, Deployment
from sordino.wire.tls_address import is_loopback

#: Flower reads these when it starts: nothing is sent to its makers, nothing is installed while it runs.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
DATABASE = "superlink.db"


@dataclass(frozen=True)
class Step:
    """One command, given in the machine's folder after `. ./env.sh`."""

    title: str
    command: str
    stays: bool = False  #: whether it keeps running
    why: str = ""


def steps(deployment: Deployment, machine: str) -> tuple[Step, ...]:
    """What is to be done on one machine, in this order."""
    return _server(deployment) if machine == SERVER else _client(deployment, machine)


def _server(deployment: Deployment) -> tuple[Step, ...]:
    link = (
        f"flower-superlink --host {quote(_listening(deployment.host))} --port {deployment.port} "
        "--ssl-certfile server.crt --ssl-keyfile server.key --ssl-ca-certfile ca.crt "
        f"--enable-supernode-auth --database {DATABASE}"
    )
    register = "\n".join(
        f"flwr supernode register nodes/{member}.pub {CONNECTION} --name {member}" for member in deployment.members
    )
    settings = ["runs='$PWD/runs'", f"coordinator-key='$PWD/{KEY}'"]
    if deployment.shuffler:
        settings += [f"shuffler-token='$PWD/{TOKEN}'", f"shuffler-key='$PWD/{SEALED_TO}'"]
    run = f'flwr run app {CONNECTION} --stream --run-config "{" ".join(settings)}"'
    return (
        Step("Start the server", link, stays=True, why="The database keeps nodes and runs over a restart."),
        Step("Register the nodes' keys, once", register, why="Nodes with other keys are turned away."),
        Step("See whether all is well", "sordino deploy check ."),
        Step(
            "Start the federation, when all nodes are online", run,
            why=f"Rounds are kept in runs/{deployment.federation}: after a crash the same command goes on there.",
        ),
    )  # fmt: skip


def _client(deployment: Deployment, member: str) -> tuple[Step, ...]:
    number = deployment.members.index(member)
    init = (
        f"sordino client init {CLIENT} {deployment.options[number]} --federation {quote(deployment.federation + '*')}"
    )
    node = (
        f"flower-supernode --superlink {quote(deployment.address)} --root-certificates ca.crt "
        f"--auth-supernode-private-key node.key --port {deployment.port_of(member)} "
        f"--node-config \"sordino-socket='$PWD/{SOCKET}'\""
    )
    allow: tuple[Step, ...] = ()
    if deployment.shuffler:
        where = f"{deployment.federation} {quote(deployment.shuffler)}"
        command = f"sordino client shuffler {CLIENT} {where} --token {TOKEN}"
        why = f"Whoever runs it gives you {TOKEN} (sordino shuffler register)."
        allow = (Step("Allow the shuffler, once", command, why=why),)
    return (
        Step(
            "Make the owner's client, once", init,
            why=f"{deployment.asks[number]} Records and budget are the owner's choice.",
        ),
        *allow,
        Step(
            "Read what the federation would learn, and agree", f"sordino client join {CLIENT} {deployment.invitation}",
            why="It asks; --yes agrees without being asked.",
        ),
        Step("Let the client answer", f"sordino client serve {CLIENT} --socket {SOCKET}", stays=True),
        Step(
            "Start the node", node, stays=True,
            why="It runs any app that the server sends: let it be a user who cannot read the client's folder.",
        ),
        Step("See whether all is well", "sordino deploy check ."),
    )  # fmt: skip


def _listening(host: str) -> str:
    """Where the server listens: a test on one machine stays on it, any other server is on all of its addresses."""
    if is_loopback(host):
        return "127.0.0.1" if host == "localhost" else host
    return "::" if ":" in host else "0.0.0.0"


def environment(deployment: Deployment, machine: str) -> str:
    """The file that a shell reads first, in the machine's folder: it also tells Flower where that folder lies."""
    lines = ["# In the folder of this file, in every new terminal:   . ./env.sh"]
    lines += [f"export {name}={value}" for name, value in QUIET.items()]
    lines += ['export FLWR_HOME="$PWD/flwr"', 'mkdir -p "$FLWR_HOME"']
    if machine == SERVER:
        lines += [
            'cat > "$FLWR_HOME/config.toml" <<END',
            "[superlink]",
            f'default = "{CONNECTION}"',
            "",
            f"[superlink.{CONNECTION}]",
            f'address = "{deployment.address}"',
            "root-certificates = '$PWD/ca.crt'",
            "END",
        ]
    return "\n".join([*lines, ""])


def page(deployment: Deployment, machine: str) -> str:
    """All commands of one machine."""
    lines = [
        f"{machine}: {deployment.federation}, at {deployment.address}",
        "",
        "In this folder, in every new terminal:",
        "",
        "    . ./env.sh",
    ]
    for number, step in enumerate(steps(deployment, machine), 1):
        lines += ["", f"{number}. {step.title}{' (keeps running)' if step.stays else ''}", ""]
        lines += [f"    {line}" for line in step.command.splitlines()]
        lines += ["", f"   {step.why}"] if step.why else []
    return "\n".join([*lines, ""])


def readme(deployment: Deployment, ends: datetime) -> str:
    """What lies in the set-up's folder, and what goes where."""
    clients = "\n".join(f"  {member + '/':<14}to the machine of {member}" for member in deployment.members)
    return f"""The federation {deployment.federation} over Flower (recipe {deployment.recipe}), made {deployment.made}

  {"server/":<14}to the server's machine, {deployment.host}
{clients}
  {"authority/":<14}to nobody: the key that signs the server's certificate. Keep it off the network.

Copy each folder to its machine by a way that nobody else can read (scp, or a stick), then follow COMMANDS.txt in it.
Order: the server's steps 1 and 2, then every client, then the server's step 4.

These certificates and node keys are FOR TESTS AND FIRST STEPS: one person made all of them here, private keys included.
Between organisations the server's certificate comes from an authority that all trust, and each client makes its own
node key (ssh-keygen -t ecdsa -b 384 -N '' -f node.key) and sends node.key.pub alone.

The server's certificate ends on {ends:%Y-%m-%d %H:%M} UTC. A new one: sordino deploy renew FOLDER
What clients agree to has the SHA-256 {deployment.terms_sha256}
Clients answer to plans that this key has signed, and to nothing else: {deployment.coordinator}
Its private half is server/{KEY}. Whoever can read it speaks for the coordinator; keep a copy of it off the network.
"""


__all__ = ["Step", "environment", "page", "readme", "steps"]
