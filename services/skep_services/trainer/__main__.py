"""Run the trainer: `skep-trainer`, beside a cluster or over an export of its log.

It looks at the log now and then, and trains between: no connection is open meanwhile. Nothing
waits for it, and nothing is lost with it. Exit codes: 0 asked to stop, or `--once` and done; 64
wrong options; 70 too little memory; 72 the log or the folder is not what it should be.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from skep.wire import subjects
from skep_lab.learn.observed import KEPT_MAX
from skep_services import replaying
from skep_services.adapters import exported
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_read import read_each
from skep_services.learning import learners, registry, runs
from skep_services.learning.problems import USAGE, LearningError, Why
from skep_services.ports import MissingStreamError, RefusedError
from skep_services.service import EXIT_BUS, EXIT_CONFIGURATION, EXIT_LOG, EXIT_OK, logger
from skep_services.supervisor.home import home_folder
from skep_services.trainer.rounds import FOLDER, TUNE, Asked, Trainer

NICE = 19
MEMORY_GIB = 4
"""Of address space: the compiler of the fast environment takes one of them."""
POLL_S = 60.0
GIB = 1 << 30
PASSING = (
    replaying.UnreachableError,
    RefusedError,
    MissingStreamError,
    TimeoutError,
    ConnectionError,
)
"""What keeps a cluster's log from being read, and may be over at the next look."""


def options() -> ArgumentParser:
    """Return what the command takes."""
    asked = Asked()
    parser = ArgumentParser(
        prog="skep-trainer",
        description="Tune the models of VCs on the jobs that ended in them; what is better on the "
        "latest third of the jobs becomes a candidate in the registry (`skep models ls`).",
    )
    parser.add_argument("--home", metavar="DIR", help="the cluster's folder; default $SKEP_HOME")
    parser.add_argument("--state", metavar="DIR", type=Path, help="its own; default HOME/trainer")
    parser.add_argument("--from", dest="source", metavar="FILE", help="an export, and no cluster")
    parser.add_argument("--once", action="store_true", help="do what is due, and end")
    parser.add_argument(
        "--vc", dest="vcs", action="append", default=[], help="default: those of policy `learned`"
    )
    parser.add_argument(
        "--every", metavar="JOBS", type=int, default=asked.every, help="between two rounds"
    )
    parser.add_argument(
        "--window", metavar="JOBS", type=int, default=asked.window, help="that a round looks at"
    )
    parser.add_argument(
        "--models", metavar="N", type=int, default=asked.models, help="candidates that are kept"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=asked.seed)
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the learner, such as generations=40; repeatable",
    )
    parser.add_argument(
        "--poll", metavar="SECONDS", type=float, default=POLL_S, help="between two looks"
    )
    parser.add_argument("--nice", metavar="N", type=int, default=NICE, help="0 to 19")
    parser.add_argument("--memory", metavar="GIB", type=int, default=MEMORY_GIB)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Train until asked to stop.

    Args:
        words: The command line; None: that of the process.

    Returns:
        The exit code.
    """
    parser = options()
    arguments = parser.parse_args(words)
    if min(arguments.every, arguments.window, arguments.models, arguments.memory) < 1:
        parser.error("--every, --window, --models and --memory are 1 or more")
    if arguments.window > KEPT_MAX:
        parser.error(f"--window is {KEPT_MAX} at most")
    if arguments.seed < 0 or arguments.poll <= 0 or not 0 <= arguments.nice <= NICE:
        parser.error(f"--seed is 0 or more, --poll more than 0, and --nice 0 to {NICE}")
    log = logger("trainer")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        _train(arguments, log, stop)
    except LearningError as error:
        log.error(error.text, why=error.why.value)
        return EXIT_CONFIGURATION if error.why in USAGE else EXIT_LOG
    except (*replaying.UNREADABLE, RefusedError, OSError) as error:
        log.error("the log cannot be read", why=str(error))
        return EXIT_LOG
    except MemoryError:
        log.error("more memory is needed", why=f"--memory {arguments.memory} GiB did not suffice")
        return EXIT_BUS
    log.info("stopped")
    return EXIT_OK


def _train(arguments: Namespace, log: Any, stop: threading.Event) -> None:
    home = home_folder(arguments.home)
    folder: Path = arguments.state or Path(home) / FOLDER
    tune = learners.imported(f".{TUNE}", "the trainer")
    asked = Asked(
        vcs=tuple(arguments.vcs),
        every=arguments.every,
        window=arguments.window,
        models=arguments.models,
        seed=arguments.seed,
        settings=learners.plain(learners.chosen(tune.Settings, arguments.assignments)),
    )
    os.nice(arguments.nice)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    memory = arguments.memory * GIB
    if most == resource.RLIM_INFINITY or memory < most:
        resource.setrlimit(resource.RLIMIT_AS, (memory, most))
    with runs.alone(folder):
        trainer = Trainer(folder, registry.folder_of(home), asked, log.info)
        log.info("ready", pid=os.getpid(), folder=str(folder))

        def goes_on() -> bool:
            return not stop.is_set()

        while goes_on():
            # A round ends with what VCs name now: only the end of the log says it.
            if _look(arguments, trainer, log):
                for _ in trainer.rounds(time.monotonic, goes_on):
                    pass  # It is said and kept already.
            if arguments.once or arguments.source:
                return
            stop.wait(arguments.poll)


def _look(arguments: Namespace, trainer: Trainer, log: Any) -> bool:
    """Read what is new of the log; what is not there now may be there later.

    Returns:
        Whether it was read to its end.

    Raises:
        UnreachableError: There is no cluster, and nothing else will be tried.
        RefusedError: Likewise, if its server does not tell.
        MissingStreamError: Likewise, if it has no such log.
        LearningError: Likewise, if the log is empty; or the log is another one, or was cut.
        TimeoutError: Likewise, if its bus is slow.
        ConnectionError: Likewise, if its bus is away.
    """
    if arguments.source:
        for one in exported.read(Path(arguments.source)).get(subjects.ALLOC, ()):
            trainer.take(one)
        trainer.check_end()
        return True
    try:
        asyncio.run(_follow(arguments.home, trainer.sequence, trainer.take))
        trainer.check_end()
    except (*PASSING, LearningError) as error:
        passes = not isinstance(error, LearningError) or error.why is Why.LACKS_FACTS
        if arguments.once or not passes:
            raise
        log.warning("the log cannot be read now; trying again", why=str(error))
        return False
    return True


async def _follow(home: str | None, after: int, take: Callable[[Any], None]) -> None:
    """Show every message of the allocator's stream behind a sequence, as far as it goes now."""
    lost: list[Exception] = []
    bus = await NatsBus.connect(replaying.link_options(home), lost.append)
    try:
        await read_each(bus, subjects.ALLOC, after, take)
    finally:
        await bus.close()


def run() -> None:
    """End the process with the code of `main`."""
    sys.exit(main())


if __name__ == "__main__":
    run()
