"""Ceph's object gateway on loopback, where Ceph is installed (Debian: ``ceph-mon ceph-osd radosgw ceph-common``).

One monitor, one storage daemon that keeps everything in memory, and the gateway: a whole cluster, in a few seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

from tiering.testing.object_servers import ObjectServer, ServerNotAvailableError, free_ports

__all__ = ["CephServer"]

_PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "ceph-authtool", "monmaptool", "radosgw", "radosgw-admin")
_SECONDS_PER_DAEMON = 60.0
_SECONDS_BETWEEN_PROBES = 0.1

_CAPABILITIES = {
    "mon.": ("mon", "allow *"),
    "client.admin": ("mon", "allow *", "osd", "allow *", "mgr", "allow *"),
    "client.rgw": ("mon", "allow rw", "osd", "allow rwx", "mgr", "allow rw"),
    "osd.0": ("mon", "allow profile osd", "osd", "allow *", "mgr", "allow profile osd"),
}

# Without cephx the gateway waits for a key for ever; the short Paxos intervals are what makes the start quick.
_CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{monitor_port}
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {directory}/keyring
auth_allow_insecure_global_id_reclaim = false
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
mon warn on pool no redundancy = false
paxos propose interval = 0.02
paxos min wait = 0.01
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon max pg per osd = 2000
run dir = {directory}
admin socket = {directory}/$name.asok
pid file = {directory}/$name.pid
log file = {directory}/$name.log
ms bind ipv4 = true
ms bind port min = {first_port}
ms bind port max = {last_port}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
mon data = {directory}/monitor
mon data avail warn = 2
mon data avail crit = 1
osd data = {directory}/storage
osd objectstore = memstore
memstore device bytes = 4294967296
osd memory target = 939524096
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw data = {directory}/gateway
rgw enable ops log = false
rgw enable usage log = false
"""


class CephServer(ObjectServer):
    """Ceph RGW; checks signatures. What it keeps is lost when it is killed."""

    kind = "ceph"
    checks_signatures = True

    def __init__(self) -> None:
        super().__init__()
        self._daemons: list[subprocess.Popen[bytes]] = []

    @classmethod
    def is_installed(cls) -> bool:
        return all(map(shutil.which, _PROGRAMS))

    def start(self) -> None:
        try:
            self._make_cluster()
        except BaseException:
            self.kill()
            raise
        super().start()

    def kill(self) -> None:
        super().kill()
        for daemon in self._daemons:
            if daemon.poll() is None:
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
        self._daemons.clear()

    def _choose_ports(self) -> None:
        self.port, *self._inner_ports = free_ports(2)

    def _command(self) -> list[str]:
        return ["radosgw", "-f", "-n", "client.rgw", "-c", str(self._cluster / "ceph.conf")]

    @property
    def _cluster(self) -> Path:
        return self._directory / "cluster"

    def _make_cluster(self) -> None:
        """Make an empty cluster, start its monitor and storage daemon, and add the user."""
        fsid, storage_id = str(uuid.uuid4()), str(uuid.uuid4())
        shutil.rmtree(self._cluster, ignore_errors=True)
        for name in ("monitor", "storage", "gateway"):
            (self._cluster / name).mkdir(parents=True)
        self._write_configuration(fsid)
        keyring, monmap = str(self._cluster / "keyring"), str(self._cluster / "monmap")
        for name, capabilities in _CAPABILITIES.items():
            granted = [word for kind, what in _pairs(capabilities) for word in ("--cap", kind, what)]
            create = [] if Path(keyring).exists() else ["--create-keyring"]
            self._run("ceph-authtool", *create, keyring, "--gen-key", "-n", name, *granted)
        monitor = f"[v2:127.0.0.1:{self._inner_ports[0]}]"
        self._run("monmaptool", "--create", "--clobber", "--fsid", fsid, "--addv", "a", monitor, monmap)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        self._start_daemon("ceph-mon", "-f", "-i", "a")
        self._wait_until("the monitor", "ceph", "-s")
        secret = self._run("ceph-authtool", keyring, "-n", "osd.0", "-p").strip()
        (self._cluster / "secret.json").write_text(json.dumps({"cephx_secret": secret}))
        self._run("ceph", "osd", "new", storage_id, "-i", str(self._cluster / "secret.json"))
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", storage_id)
        self._start_daemon("ceph-osd", "-f", "-i", "0")
        self._wait_until("the storage daemon", "ceph", "osd", "stat", says="1 up")
        user = ("--uid", "test", "--display-name", "test", "--access-key", self.access_key, "--secret", self.secret_key)
        self._run("radosgw-admin", "-n", "client.rgw", "user", "create", *user)

    def _write_configuration(self, fsid: str) -> None:
        monitor_port = self._inner_ports[0]
        text = _CONFIGURATION.format(
            fsid=fsid,
            directory=self._cluster,
            monitor_port=monitor_port,
            first_port=monitor_port + 1,
            last_port=monitor_port + 60,
            port=self.port,
        )
        (self._cluster / "ceph.conf").write_text(text)

    def _run(self, program: str, *arguments: str) -> str:
        command = [program, "-c", str(self._cluster / "ceph.conf"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_PER_DAEMON, check=False)
        if done.returncode != 0:
            raise ServerNotAvailableError(f"{program} of the ceph server failed: {done.stderr[-2000:]}")
        return done.stdout

    def _start_daemon(self, *command: str) -> None:
        with (self._cluster / f"{command[0]}.out").open("ab") as output:
            self._daemons.append(
                subprocess.Popen(
                    [*command, "-c", str(self._cluster / "ceph.conf")],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _wait_until(self, what: str, *command: str, says: str = "") -> None:
        deadline = time.monotonic() + _SECONDS_PER_DAEMON
        while time.monotonic() < deadline:
            try:
                if says in self._run(*command):
                    return
            except (ServerNotAvailableError, subprocess.TimeoutExpired):
                pass
            time.sleep(_SECONDS_BETWEEN_PROBES)
        raise ServerNotAvailableError(f"{what} of the ceph server did not come up in {_SECONDS_PER_DAEMON} s")


def _pairs(capabilities: tuple[str, ...]) -> list[tuple[str, str]]:
    return list(zip(capabilities[::2], capabilities[1::2], strict=True))
