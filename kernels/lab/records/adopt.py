"""Give recordings made before the field `sources` the hashes of the commit they were made at.

    python -m kernels.lab proofs adopt norms

It reads the commit's own files out of git, in the layout of then, and writes the field into
`<suite>.json`; no number changes. A recording that has the field keeps it.
"""

from __future__ import annotations

from pathlib import Path

from kernels.lab.records import sources
from kernels.lab.records.data import recordings, write_provenance
from kernels.lab.selection import RefusalError
from kernels.paths import DATA_DIR, ROOT


def run(suite: str, root: Path = ROOT, data_dir: Path = DATA_DIR) -> int:
    """Write the field into each recording of the suite that lacks it; return 0.

    RefusalError where nothing was recorded, where the record tells of no clean commit, and where
    the clone lacks that commit.
    """
    found = recordings(suite, data_dir)
    if not found:
        raise RefusalError(f"suite {suite!r} was recorded on no card")
    for recording in found:
        told, name = recording.provenance, f"{recording.gpu}/{suite}"
        if "sources" in told:
            print(f"{name} has the hashes of its sources already")
            continue
        commit = told.get("commit")
        if not commit or told.get("dirty") is not False:
            raise RefusalError(f"{name} tells of no commit without changes; record it again")
        try:
            tree = sources.of_commit(root, commit)
        except LookupError as error:
            raise RefusalError(str(error)) from error
        operations = dict.fromkeys(row.op for row in recording.rows)
        hashes = sources.of_operations(tree, suite, operations)
        write_provenance(data_dir / recording.gpu / f"{suite}.csv", {**told, "sources": hashes})
        print(f"{name}: the sources of {', '.join(hashes)} as at commit {commit[:10]}")
    return 0
