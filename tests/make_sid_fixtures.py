#!/usr/bin/env python3
"""make_sid_fixtures.py - tests/data/sid: embeddings and items for tests/e2e_sid.sh.

    python3 tests/make_sid_fixtures.py tests/data/sid        (a development tool: needs numpy and h5py)

300 items of 20 hidden kinds, in 12 numbers each; items 5 and 40 are equal to the last bit. The same rows as NumPy's fp32 and as HDF5's compressed fp64.
"""
import json
import pathlib
import sys

import h5py
import numpy as np

N, WIDTH, KINDS = 300, 12, 20


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    kinds = rng.normal(size=(KINDS, WIDTH))
    rows = (kinds[rng.integers(0, KINDS, N)] + 0.3 * rng.normal(size=(N, WIDTH))).astype("<f4")
    rows[40] = rows[5]
    np.save(folder / "items.npy", rows)
    with h5py.File(folder / "items.h5", "w", libver=("earliest", "v108")) as f:
        f.create_dataset("text/emb", data=rows.astype("<f8"), chunks=(64, WIDTH), compression="gzip")
        f.create_dataset("norms", data=np.linalg.norm(rows, axis=1))
    items = {str(i): {"title": f"Item {i}", "description": ["of kind", str(i % 7)], "brand": "none"} for i in range(N)}
    items["3"]["title"] = "A title\twith a tab"
    (folder / "items.item.json").write_text(json.dumps(dict(reversed(items.items())), indent=0))


if __name__ == "__main__":
    main()
