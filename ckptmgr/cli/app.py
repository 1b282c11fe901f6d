"""The commands and their options, and what becomes of errors: one line, and an exit code.

0: done. 1: it could not be done: no such run or step, locked, held, a store that cannot be
reached. 2: it was asked for in a wrong way. 3: the answer is no: `verify` found damage,
`diff` found differences. 130: Ctrl-C. 141: whoever was to read has gone.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated, Final

import typer
from absl import logging

from ckptmgr.cli.text import NobodyReads
from ckptmgr.errors import CheckpointError, InvalidOption

FAILED: Final = 1
USAGE: Final = 2
DIFFERENT: Final = 3
INTERRUPTED: Final = 130
PIPE: Final = 141

app = typer.Typer(
    help="Look into checkpoints, check them, compare them, and tidy up.",
    epilog="Exit codes: 0 done; 1 not done; 2 wrongly asked; 3 damaged, or different; "
    "130 interrupted; 141 nobody reads. "
    "RUN is a directory, or s3://bucket/run or gs://bucket/run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain text starts sooner, and can be piped
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Run = Annotated[str, typer.Argument(metavar="RUN", help="a directory or URL", show_default=False)]
Step = Annotated[str, typer.Argument(metavar="[STEP]", help="a number, or newest")]
OneStep = Annotated[str, typer.Argument(metavar="STEP", help="a number, or newest")]
Json = Annotated[bool, typer.Option("--json", help="for scripts")]
Keep = Annotated[
    str, typer.Option("--keep", help="rules, such as 'KeepLast(3) | KeepEvery(steps=1000)'")
]


def run(arguments: list[str]) -> int:
    """Run a command; its exit code."""
    logging.set_verbosity(logging.ERROR)  # what matters of a run is in what is printed
    if sys.stdout is None:  # it was closed before this began
        return PIPE
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(args=arguments, standalone_mode=False, prog_name="ckptmgr")
    except InvalidOption as error:
        return _refused(error, USAGE)
    except CheckpointError as error:
        return _refused(error, FAILED)
    except NobodyReads:
        return PIPE
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        # Those of click, which typer brings under a name that changes: they show themselves.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return USAGE
    return int(code or 0)


def _refused(error: CheckpointError, code: int) -> int:
    sys.stderr.write(f"ckptmgr: {error}\n")
    return code


# What each needs is imported as it is called: most start without numpy, and none with jax.


@app.command()
def ls(url: Run, *, json: Json = False) -> None:
    """List the steps, the newest first, and the saves that are on their way."""
    from ckptmgr.cli import listing  # noqa: PLC0415

    listing.ls(url, json=json)


@app.command()
def show(
    url: Run,
    step: Step = "newest",
    *,
    depth: Annotated[int | None, typer.Option(min=0, help="levels of the tree")] = None,
    match: Annotated[list[str] | None, typer.Option(help="a glob of key paths")] = None,
    json: Json = False,
) -> None:
    """Show the tree of a step, or of the checkpoint at a path: types, shapes, shardings, bytes."""
    from ckptmgr.cli import contents  # noqa: PLC0415

    contents.show(url, step, depth=depth, match=match or (), json=json)


@app.command()
def diff(
    url: Run,
    a: Annotated[str, typer.Argument(metavar="A", help="a step")],
    b: Annotated[str, typer.Argument(metavar="B", help="another")],
    *,
    values: Annotated[bool, typer.Option("--values", help="read them: how far apart")] = False,
    json: Json = False,
) -> int:
    """Compare two steps by their digests: leaves added, removed and changed. Exits 3 if any."""
    from ckptmgr.cli import comparing  # noqa: PLC0415

    return DIFFERENT if comparing.diff(url, a, b, values=values, json=json) else 0


@app.command()
def verify(
    url: Run,
    step: Step = "newest",
    *,
    every: Annotated[bool, typer.Option("--all", help="every step")] = False,
    json: Json = False,
) -> int:
    """Read and check every byte of a step, or of the checkpoint at a path. Exits 3 if damaged."""
    from ckptmgr.cli import checking  # noqa: PLC0415

    return 0 if checking.check(url, step, every=every, json=json) else DIFFERENT


@app.command()
def explain(
    url: Run,
    *,
    keep: Annotated[str | None, typer.Option(help="instead of those of the writer")] = None,
    json: Json = False,
) -> None:
    """Say why each step is kept, and why each that is gone was deleted."""
    from ckptmgr.cli import listing  # noqa: PLC0415

    listing.explain(url, keep, json=json)


@app.command()
def gc(
    url: Run,
    keep: Keep,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would go")] = False,
    json: Json = False,
) -> int:
    """Delete the steps that no rule keeps, while nobody writes; the newest kept is verified."""
    from ckptmgr.cli import listing  # noqa: PLC0415

    return 0 if listing.gc(url, keep, dry_run=dry_run, json=json) else FAILED


@app.command()
def pin(url: Run, step: OneStep) -> None:
    """Keep a step whatever the rules say."""
    from ckptmgr.cli import changing  # noqa: PLC0415

    changing.pin(url, step)


@app.command()
def unpin(url: Run, step: OneStep) -> None:
    """Leave a step to the rules again."""
    from ckptmgr.cli import changing  # noqa: PLC0415

    changing.unpin(url, step)


@app.command()
def annotate(
    url: Run,
    step: OneStep,
    *,
    metric: Annotated[list[str] | None, typer.Option(metavar="NAME=NUMBER")] = None,
    metadata: Annotated[list[str] | None, typer.Option(metavar="NAME=JSON")] = None,
) -> None:
    """Say more of a step: metrics, which KeepBest looks at, and metadata."""
    from ckptmgr.cli import changing  # noqa: PLC0415

    changing.annotate(url, step, metric or (), metadata or ())


@app.command()
def rm(url: Run, steps: Annotated[list[str], typer.Argument(metavar="STEP...")]) -> None:
    """Delete steps, damaged ones too, or by name what was set aside; while nobody writes."""
    from ckptmgr.cli import changing  # noqa: PLC0415

    changing.rm(url, steps)


@app.command()
def watch(
    url: Run,
    *,
    once: Annotated[bool, typer.Option("--once", help="as it is now")] = False,
    json: Json = False,
) -> None:
    """Watch the manager that writes a run: its queue, its bytes, its last save and error."""
    from ckptmgr.cli import watching  # noqa: PLC0415

    watching.watch(url, once=once, json=json)


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="of any format that is known")],
    target: Annotated[str, typer.Argument(metavar="DST", help="where there is nothing yet")],
    *,
    to: Annotated[
        str | None,
        typer.Option(help="ckptmgr, zip, safetensors, msgpack, npz, eformer"),
    ] = None,
    step: Annotated[int | None, typer.Option(help="of a run; else its newest")] = None,
    select: Annotated[list[str] | None, typer.Option(help="a glob of key paths")] = None,
    dtype: Annotated[str | None, typer.Option(help="of floating arrays, as bfloat16")] = None,
    limit: Annotated[str, typer.Option(help="bytes of arrays in memory at a time")] = "1GiB",
) -> None:
    """Write a checkpoint of Orbax, jax, eformer, safetensors, flax or ours in another format."""
    from ckptmgr.cli import converting  # noqa: PLC0415

    converting.run(source, target, to, step, select or (), dtype, limit)


@app.command()
def bench(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="on the disk to measure")],
    *,
    nbytes: Annotated[str, typer.Option("--size", help="of the tree")] = "1GiB",
    leaves: Annotated[int, typer.Option(min=1, help="arrays that it consists of")] = 100,
    json: Json = False,
) -> None:
    """Measure what this disk does with a tree, and how often saving it costs at most 1 %."""
    from ckptmgr.cli import measuring  # noqa: PLC0415

    measuring.bench(directory, nbytes, leaves, json=json)
