"""Loaders of others, with workers and five lines of Skep's: `loaders.py NAME`.

StatefulDataLoader   torchdata's, shuffled
StreamingDataLoader  Mosaic's, over shards that are written here
WebDataset           over tar files that are written here: read again up to the place
"""

from __future__ import annotations

import io
import random
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import torch
from digest import tell
from torch import nn

import skep_job

ROWS, BATCH, EPOCHS, WORKERS = 240, 4, 2, 2


def inputs() -> Any:
    """Return the rows."""
    return torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(7))


def stateful() -> Any:
    """Return a loader of torchdata."""
    from torch.utils.data import TensorDataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows = TensorDataset(inputs())
    return StatefulDataLoader(rows, BATCH, shuffle=True, num_workers=WORKERS)


def streaming(folder: Path) -> Any:
    """Return a loader of Mosaic's; each process has a copy of the shards of its own."""
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    with MDSWriter(out=str(folder / "data"), columns={"x": "ndarray"}, size_limit=8_000) as out:
        for row in inputs():
            out.write({"x": row.numpy()})
    data = StreamingDataset(
        remote=str(folder / "data"), local=str(folder / "local"), batch_size=BATCH, shuffle=True
    )
    return StreamingDataLoader(data, batch_size=BATCH, num_workers=WORKERS, collate_fn=_of_mosaic)


def _of_mosaic(rows: list[dict[str, Any]]) -> list[torch.Tensor]:
    return [torch.stack([torch.tensor(row["x"]) for row in rows])]


def tars(folder: Path) -> Any:
    """Return a loader of WebDataset, shuffled by shards and within them."""
    import webdataset

    urls = [str(folder / f"{number}.tar") for number in range(8)]
    for number, url in enumerate(urls):
        with tarfile.open(url, "w") as tar:
            for key, row in list(enumerate(inputs()))[number :: len(urls)]:
                file = io.BytesIO()
                torch.save(row.clone(), file)
                member = tarfile.TarInfo(f"{key:04}.pth")
                member.size = file.tell()
                file.seek(0)
                tar.addfile(member, file)
    data = webdataset.WebDataset(urls, shardshuffle=4, detshuffle=True)
    data = data.compose(webdataset.detshuffle(20, seed=3)).to_tuple("pth")
    data = data.batched(BATCH, collation_fn=_of_tars)
    return webdataset.WebLoader(data, batch_size=None, num_workers=WORKERS)


def _of_tars(rows: list[Any]) -> list[torch.Tensor]:
    return [torch.stack([torch.load(io.BytesIO(row[0])) for row in rows])]


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    random.seed(0)  # WebDataset takes its seed from it.
    folder = Path(tempfile.mkdtemp())
    name = sys.argv[1]
    loader = stateful() if name.startswith("Stateful") else None
    if loader is None:
        loader = streaming(folder) if name.startswith("Streaming") else tars(folder)
    net: Any = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    run = skep_job.init()
    run.track(net=net, optimizer=optimizer)
    for _ in run.epochs(EPOCHS):
        for (x,) in run.batches(loader):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(net(x), x))
            optimizer.step()
    tell(net.state_dict().values())


if __name__ == "__main__":
    main()
