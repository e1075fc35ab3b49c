"""Scripts as users write them: nothing in here knows of Skep. `plain.py NAME` trains one way."""

import hashlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 200


def data() -> TensorDataset:
    """Return random pairs."""
    return TensorDataset(torch.randn(2 * STEPS, 256), torch.randn(2 * STEPS, 256))


def net() -> nn.Module:
    """Return a net with dropout, so that chance is part of the result."""
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 256))


def done(model: nn.Module) -> None:
    """Print what the training came to."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.detach().cpu().numpy().tobytes())
    print("result", digest.hexdigest(), flush=True)


def plain(model: nn.Module, *, every: int = 1, scaler: bool = False) -> None:
    """Train, with accumulation over `every` batches, or with a scaler that meets infinities."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scale = torch.amp.GradScaler("cpu", enabled=scaler, init_scale=2.0**10)
    for number, (x, y) in enumerate(DataLoader(data(), batch_size=2, shuffle=True)):
        loss = nn.functional.mse_loss(model(x), y) / every
        if scaler and number % 10 == 5:
            loss = loss * float("inf")
        scale.scale(loss).backward()
        if (number + 1) % every == 0:
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()
    done(model)


def gan() -> None:
    """Train a discriminator five times as often as its generator."""
    fake, judge = net(), net()
    fool = torch.optim.Adam(fake.parameters(), lr=1e-3)
    catch = torch.optim.Adam(judge.parameters(), lr=1e-3)
    for number, (x, noise) in enumerate(DataLoader(data(), batch_size=2, shuffle=True)):
        catch.zero_grad()
        (judge(fake(noise).detach()) - judge(x)).mean().backward()
        catch.step()
        if number % 5 == 4:
            fool.zero_grad()
            (-judge(fake(noise))).mean().backward()
            fool.step()
    done(nn.ModuleList([fake, judge]))


def ranks() -> None:
    """Train with DistributedDataParallel, as torchrun starts it."""
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(net())
    sampler = torch.utils.data.DistributedSampler(data())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x, y in DataLoader(data(), batch_size=2, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    if torch.distributed.get_rank() == 0:
        done(model.module)
    torch.distributed.destroy_process_group()


def main() -> None:
    """Run one of them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name = sys.argv[1]
    if name == "plain":
        plain(net())
    elif name == "accumulation":
        plain(net(), every=4)
    elif name == "scaler":
        plain(net(), scaler=True)
    elif name == "compile":
        plain(torch.compile(net()))
    elif name == "gan":
        gan()
    elif name == "ranks":
        ranks()


main()
