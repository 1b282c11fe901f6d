"""A run that lives in an object store: killed on one machine, resumed on another.

    python -m examples.demo_object_store

The store is moto's S3 server. The machines are working directories: of the first nothing
is left but what is in the store. Ends with an error unless parameters, optimizer state
and losses equal those of a run that was never interrupted, bit for bit.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from examples.demo import losses, same

KILL_FROM_STEP = 60  # of 120
URL = "s3://bucket/run"
ROOT = Path(__file__).parent.parent


def trainer(machine: Path, run: str) -> subprocess.Popen[str]:
    """The example, as a process of its own in a directory of its own."""
    machine.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "examples.train_gpt", f"--run={run}"]
    command += [f"--result={machine}/run.json"]
    if run.startswith("s3:"):
        command.append(f"--config={ROOT}/configs/object_store.toml")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=machine, env=environment, stdout=subprocess.PIPE, text=True
    )


def kill_while_saving(machine: Path) -> str:
    """Start a run and kill it as soon as it begins to save a late step; the line it said so in."""
    with trainer(machine, URL) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("step") and int(line.split()[1]) >= KILL_FROM_STEP:
                process.send_signal(signal.SIGKILL)
                return line
    raise SystemExit("the trainer ended before it could be killed")


def finish(machine: Path, run: str) -> None:
    """Run until the end."""
    with trainer(machine, run) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
    if process.returncode:
        raise SystemExit("the trainer failed")


def main() -> None:
    """Run it all in a temporary directory."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    credentials = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo"}
    place = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update({**credentials, **place})
    boto3.client("s3").create_bucket(Bucket="bucket")
    with tempfile.TemporaryDirectory(prefix="ckptmgr-demo-") as folder:
        print("== a run, killed with SIGKILL while it saves", flush=True)
        kill_while_saving(Path(folder) / "first")
        print("== the same command on another machine", flush=True)
        finish(Path(folder) / "second", URL)
        print("== a run that nobody interrupts, on local files", flush=True)
        finish(Path(folder) / "third", f"{folder}/third/run")
        resumed, expected = losses(Path(folder) / "second/run"), losses(Path(folder) / "third/run")
        equal = all(expected[step] == loss for step, loss in resumed.items())
        whole = same(URL, f"{folder}/third/run")
        print(f"parameters and optimizer state bit-equal: {whole}")
        print(f"losses after the resumption bit-equal: {equal} ({len(resumed)} steps)")
        if not (equal and whole and 0 < len(resumed) < len(expected)):
            raise SystemExit("the resumed run is not the uninterrupted one")
    server.stop()


if __name__ == "__main__":
    main()
