"""What is to be done on each machine, for people to read and for tests to run as it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from shlex import quote

from sordino.deploy.deployment import COORDINATORS, FLOWER, SEALED_TO, SERVER, TOKEN, Deployment, FederationSetup


@dataclass(frozen=True)
class Step:
    """One command, given in the machine's folder."""

    title: str
    command: str
    stays: bool = False  #: whether it keeps running
    why: str = ""


def steps(deployment: Deployment, machine: str) -> tuple[Step, ...]:
    """What is to be done on one machine, in this order."""
    return _server(deployment) if machine == SERVER else _member(deployment, machine)


def _server(deployment: Deployment) -> tuple[Step, ...]:
    why = "It goes on after a crash or a restart, and ends when the federation is over."
    if any(each.shuffler for each in deployment.federations):
        why += f" Put {TOKEN} and {SEALED_TO} into {COORDINATORS}/NAME first (sordino shuffler register and keys)."
    return (
        Step("Start everything, and keep it running", "sordino deploy up .", stays=True, why=why),
        Step("See whether all is well, in another terminal", "sordino deploy check ."),
    )


def _member(deployment: Deployment, member: str) -> tuple[Step, ...]:
    found: list[Step] = []
    for each in deployment.federations_of(member):
        name = f" {each.name}" if len(deployment.federations) > 1 else ""
        asks = each.asks[each.members.index(member)]
        own = f"{asks} Records and budget are the owner's choice: give --data, --budget and so on."
        found.append(Step("Read what the federation would learn, and agree", f"sordino deploy join .{name}", why=own))
        if each.shuffler:
            found.append(_shuffler(each))
    return (
        *found,
        Step("Start everything, and keep it running", "sordino deploy up .", stays=True),
        Step("See whether all is well, in another terminal", "sordino deploy check ."),
    )


def _shuffler(federation: FederationSetup) -> Step:
    where = f"{federation.name} {quote(federation.shuffler)}"
    why = f"Whoever runs it gives you {TOKEN} (sordino shuffler register). Then join again."
    return Step("Allow the shuffler, once", f"sordino client shuffler client {where} --token {TOKEN}", why=why)


def page(deployment: Deployment, machine: str) -> str:
    """All commands of one machine."""
    names = ", ".join(each.name for each in deployment.federations)
    lines = [f"{machine}: {names}, at {deployment.address}", "", "In this folder:"]
    for number, step in enumerate(steps(deployment, machine), 1):
        lines += ["", f"{number}. {step.title}{' (keeps running)' if step.stays else ''}", "", f"    {step.command}"]
        lines += ["", f"   {step.why}"] if step.why else []
    return "\n".join([*lines, ""])


def readme(deployment: Deployment, ends: datetime) -> str:
    """What lies in the set-up's folder, and what goes where."""
    clients = "\n".join(f"  {member + '/':<14}to the machine of {member}" for member in deployment.members)
    federations = "\n".join(
        f"What clients of {each.name} agree to has the SHA-256 {each.terms_sha256}\n"
        f"They answer to plans that this key has signed, and to nothing else: {each.coordinator}"
        for each in deployment.federations
    )
    return f"""A set-up of Sordino over Flower, made {deployment.made}

  {"server/":<14}to the server's machine, {deployment.host}
{clients}
  {"authority/":<14}to nobody: the key that signs the server's certificate. Keep it off the network.

Copy each folder to its machine by a way that nobody else can read (scp, or a stick), then follow COMMANDS.txt in it.

These certificates and node keys are FOR TESTS AND FIRST STEPS: one person made all of them here, private keys included.
Between organisations the server's certificate comes from an authority that all trust, and each client makes its own
node key (ssh-keygen -t ecdsa -b 384 -N '' -f {FLOWER}/node.key) and sends node.key.pub alone.

The server's certificate ends on {ends:%Y-%m-%d %H:%M} UTC. A new one: sordino deploy renew FOLDER
{federations}
Private halves are in server/{COORDINATORS}. Whoever reads one speaks for the coordinator; keep copies off the network.
"""


__all__ = ["Step", "page", "readme", "steps"]
