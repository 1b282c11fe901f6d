"""The API as HTML, in results/api: `make docs`. A warning is an error."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc

import ckptmgr


def main() -> None:
    """Make the pages."""
    # pdoc looks only at what a module has, and names are imported as they are used.
    vars(ckptmgr).update({name: getattr(ckptmgr, name) for name in ckptmgr.__all__})
    warnings.simplefilter("error", UserWarning)
    # What NumpyStruct inherits of jax names what only jax's stubs have, and the constructor of
    # a NamedTuple does not know its module.
    for what in (r"jax\.ShapeDtypeStruct", r"ckptmgr\.Encoded\.__init__"):
        warnings.filterwarnings("ignore", message=rf".* for {what}")
    pdoc.render.configure(docformat="google", show_source=False)
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "results/api")
    pdoc.pdoc("ckptmgr", "ckptmgr.colocated", output_directory=output)
    print(f"{output}/ckptmgr.html")


if __name__ == "__main__":
    main()
