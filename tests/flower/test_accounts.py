"""What root does for other accounts, and what it does not take along."""

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from sordino.deploy import accounts
from sordino.deploy.registration import _small_file
from sordino.errors import InvalidInput

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand files to other accounts")
NOBODY = pwd.getpwnam("nobody")


def machine(place: Path) -> Path:
    (place / "flower/home").mkdir(parents=True)
    (place / "flower/node.key").write_text("a key")
    (place / "deployment.toml").write_text("")
    return place


def test_flowers_files_are_handed_over_with_their_group_and_no_link_is_followed(tmp_path):
    place, other = machine(tmp_path / "m"), tmp_path / "other"
    other.write_text("root's")
    (place / "flower/home/link").symlink_to(other)
    accounts.hand_over(place, "nobody")
    for path in (place / "flower", place / "flower/node.key", place / "flower/home"):
        assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY.pw_uid, NOBODY.pw_gid)
    assert other.stat().st_uid == 0
    assert place.stat().st_mode & 0o011 == 0o011


def test_nothing_is_handed_from_one_account_of_flowers_to_another(tmp_path):
    place = machine(tmp_path / "m")
    os.chown(place / "flower", pwd.getpwnam("daemon").pw_uid, -1)
    with pytest.raises(InvalidInput):
        accounts.hand_over(place, "nobody")
    assert (place / "flower/node.key").stat().st_uid == 0


def test_a_side_has_the_groups_of_its_own_account_and_flowers_and_no_others(tmp_path):
    """The folder's own group may be the owner's, whose records it can read."""
    place = machine(tmp_path / "m")
    accounts.hand_over(place, "nobody")
    os.chown(place / "flower", -1, 0)
    identity = accounts.identity(place / "flower", "nobody")
    said = subprocess.run(
        ["/bin/sh", "-c", "id -u; id -g; id -G"], **identity, capture_output=True, text=True, check=True, cwd="/"
    ).stdout.split()
    assert set(said) == {str(NOBODY.pw_uid), str(NOBODY.pw_gid)}


def test_a_side_is_given_nothing_of_roots_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "root's")
    monkeypatch.setenv("LANG", "C.UTF-8")
    found = accounts._environment(accounts._Side("flower", tmp_path))
    assert (found["HOME"], found["LANG"]) == (str(tmp_path), "C.UTF-8")
    assert "SECRET_TOKEN" not in found and "PATH" in found


@pytest.mark.parametrize("kind", ["pipe", "link", "large", "missing"])
def test_what_is_no_key_file_is_not_waited_for(tmp_path, kind):
    path, other = tmp_path / "x.pub", tmp_path / "other"
    other.write_bytes(b"ecdsa AAAA")
    {
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(other),
        "large": lambda: path.write_bytes(bytes(10**6)),
        "missing": lambda: None,
    }[kind]()
    assert _small_file(path) == b""
    assert _small_file(other) == b"ecdsa AAAA"
