"""What every exercise says of where it is worked on; the generator puts it in.

A page of the book is read. Its notebook is worked on in a copy of the reader's own, on the reader's
machine or in Colab, which keeps neither notebooks nor points unless it is told to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Cell = dict[str, Any]

WHERE = """\
> **Where to work.** On the book's page this notebook is only read. Work in a copy of your own:
>
> - *JupyterLab*: `make lab`, in the clone, copies the exercises into `work/` and opens them there.
> - *VS Code*: `make work` copies them too. Open one of `work/`, and choose the kernel of `.venv`.
> - *Colab*: press the rocket of the page, choose Colab, then *File*, *Save a copy in Drive*.
>   What is not saved is gone when its runtime ends. The second code cell keeps your points too.
>
> A copy in `work/` is never overwritten. Checks are the same in all three."""

DRIVE = """\
# In Colab, True keeps your points on your Drive: they outlive the runtime.
points_on_drive = False
if points_on_drive:
    import os
    from google.colab import drive

    drive.mount("/content/drive")
    mine = "/content/drive/MyDrive/fusing-kernels"
    os.environ["KERNELS_PROGRESS"] = f"{mine}/progress.json"
"""


def with_a_place_to_work(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of a set, with the text before the setup cell and the cell for Colab after it.

    A notebook without a setup cell stays as it is.
    """
    told: list[Cell] = []
    for cell in cells:
        if "setup" not in cell["metadata"].get("tags", []):
            told.append(cell)
            continue
        where: Cell = {"cell_type": "markdown", "id": "where-to-work", "metadata": {}}
        drive: Cell = {"cell_type": "code", "id": "points-on-drive"}
        drive["metadata"] = {"tags": ["hide-input"]}
        told += [where | {"source": WHERE}, cell, drive | {"source": DRIVE}]
    return told
