"""A save to an S3 server on loopback against boto3 putting the same bytes with 8 threads.

Usage: python -m tests.benchmarks.cloud [--rounds N] [--megabytes N]

The server is moto. Told are the seconds until all bytes are acknowledged, and how long
`save()` kept the trainer, there and on local files.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import boto3
import jax
import numpy as np

from ckptmgr import CheckpointManager, KeepLast
from ckptmgr.format.chunks import CHUNK_BYTES
from tests.benchmarks.works import growth
from tests.storage import servers

_THREADS = 8


def main() -> None:
    """Measure in turn, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=512)
    arguments = parser.parse_args()
    tree = jax.block_until_ready(growth(arguments.megabytes))
    chunks = [
        np.asarray(array).view(np.uint8)[start : start + CHUNK_BYTES]
        for array in jax.tree.leaves(tree)
        for start in range(0, array.nbytes, CHUNK_BYTES)
    ]
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for endpoint in servers.server():
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        store = servers.s3(endpoint)

        def put(number: int, client: object = client) -> None:
            client.put_object(  # type: ignore[attr-defined]  # boto3 makes its methods at run time
                Bucket="bucket", Key=f"other/{number}", Body=chunks[number].tobytes()
            )

        keep = KeepLast(1)
        with (
            tempfile.TemporaryDirectory() as folder,
            CheckpointManager(store.url, keep=keep, storage=store.options) as cloud,
            CheckpointManager(f"{folder}/run", keep=keep) as local,
            ThreadPoolExecutor(_THREADS) as pool,
        ):
            for number in range(arguments.rounds + 1):
                began = time.perf_counter()
                list(pool.map(put, range(len(chunks))))
                times = {"boto3": {"durable": time.perf_counter() - began}}
                for name, manager in (("ckptmgr", cloud), ("local", local)):
                    began = time.perf_counter()
                    future = manager.save(number, tree)
                    stall = time.perf_counter() - began
                    future.result()
                    times[name] = {"stall": stall, "durable": time.perf_counter() - began}
                    manager.wait()
                for who, figures in times.items() if number else ():
                    for figure, value in figures.items():
                        found[who][figure].append(value)
                print(f"cloud: round {number} of {arguments.rounds}", file=sys.stderr)
    print(json.dumps({"nbytes": sum(chunk.nbytes for chunk in chunks), "figures": found}))


if __name__ == "__main__":
    main()
