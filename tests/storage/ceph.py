"""A Ceph RGW of one node, from its packages, in a temporary directory: a real S3 server.

    python -m tests.storage.ceph COMMAND ...

Starts it, runs the command with AWS_ENDPOINT_URL and credentials set, and stops it. Needs
the packages radosgw, ceph-mon, ceph-osd, ceph-mgr and ceph-common.
https://docs.ceph.com/en/pacific/install/manual-deployment/
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator

_PORT, _MON = 18084, 18085
_KEYS = ("canary-access-key", "canary-secret-key")
_PATIENCE = 120.0
CONFIGURATION = """
[global]
fsid = {fsid}
mon host = [v1:127.0.0.1:{mon}/0]
ms bind msgr2 = false
mon data avail warn = 1
mon data avail crit = 1
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
osd objectstore = memstore
memstore device bytes = 4294967296
run dir = {root}
log file = {root}/$name.log
admin socket = {root}/$name.asok
pid file = {root}/$name.pid
[mon.a]
mon data = {root}/mon
mon addr = 127.0.0.1:{mon}
[mgr.a]
mgr data = {root}/mgr
[osd.0]
osd data = {root}/osd
public addr = 127.0.0.1
cluster addr = 127.0.0.1
[client.rgw]
rgw data = {root}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw dns name = 127.0.0.1
"""


def run(*command: str) -> str:
    """What a command prints."""
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return finished.stdout.strip()


@contextlib.contextmanager
def started(root: str) -> Iterator[str]:
    """The endpoint of a server whose files lie below `root`, until the context ends."""
    conf, fsid = f"{root}/ceph.conf", str(uuid.uuid4())
    with open(conf, "w") as file:
        file.write(CONFIGURATION.format(root=root, fsid=fsid, mon=_MON, port=_PORT))
    for name in ("mon", "mgr", "osd", "rgw"):
        os.mkdir(f"{root}/{name}")
    run(
        "monmaptool",
        "--create",
        "--addv",
        "a",
        f"[v1:127.0.0.1:{_MON}/0]",
        "--fsid",
        fsid,
        f"{root}/map",
    )
    run("ceph-mon", "-c", conf, "--mkfs", "-i", "a", "--monmap", f"{root}/map")
    with contextlib.ExitStack() as daemons:

        def daemon(*command: str) -> subprocess.Popen[bytes]:
            log = daemons.enter_context(open(f"{root}/{command[0]}.out", "w"))
            process = subprocess.Popen([*command, "-c", conf, "-f"], stdout=log, stderr=log)
            daemons.callback(process.wait)
            daemons.callback(process.kill)
            return process

        daemon("ceph-mon", "-i", "a")
        osd = str(uuid.uuid4())
        run("ceph", "-c", conf, "osd", "new", osd)
        run("ceph-osd", "-c", conf, "-i", "0", "--mkfs", "--osd-uuid", osd)
        daemon("ceph-mgr", "-i", "a")
        process = daemon("ceph-osd", "-i", "0")
        while "1 up" not in run("ceph", "-c", conf, "osd", "stat"):
            if process.poll() is not None:  # now and then it asks before it has heard the fsid
                process = daemon("ceph-osd", "-i", "0")
            time.sleep(0.2)
        daemon("radosgw", "-n", "client.rgw")
        endpoint = f"http://127.0.0.1:{_PORT}"
        _await(endpoint)
        access, secret = _KEYS
        admin = ("radosgw-admin", "-c", conf, "-n", "client.rgw", "user", "create")
        run(
            *admin,
            "--uid=test",
            "--display-name=test",
            f"--access-key={access}",
            f"--secret-key={secret}",
        )
        yield endpoint


def _await(endpoint: str) -> None:
    """Until the server answers."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            return


def main() -> None:
    """Run a command beside the server."""
    root = tempfile.mkdtemp(prefix="ceph")
    try:
        with started(root) as endpoint:
            access, secret = _KEYS
            environment = {
                **os.environ,
                "CKPTMGR_S3": endpoint,
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ACCESS_KEY_ID": access,
                "AWS_SECRET_ACCESS_KEY": secret,
                "AWS_REGION": "us-east-1",
            }
            code = subprocess.run(sys.argv[1:], env=environment, check=False).returncode
    finally:
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
