"""An agent's part in the changes of a gang, for tests: processes, their sockets, and a store."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from skep_job.link.frames import encode
from tests.support.job_agent import DEADLINE_S, JobAgent, Message, environment
from tests.support.warm_ranks import Warm

SCRIPT = Path(__file__).parents[1] / "e2e" / "jobs" / "elastic_train.py"


REPLICA_BYTES = 8 * 1024**3

OPPOSITE = {"rescaled": "failed", "failed": "rescaled", "past": "failed"}


class Store:
    """A `python -m skep_job.store` process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "skep_job.store"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.host, self.port, self.pid = said["host"], said["port"], said["pid"]

    def kill(self) -> None:
        """Lose the store."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """End it as its holder does, by ending."""
        self.process.communicate(timeout=DEADLINE_S)


class Member:
    """One process of a gang, and the agent's end of its socket."""

    def __init__(
        self,
        script: Path,
        folder: Path,
        env: dict[str, str],
        options: dict[str, Any],
        warm: Warm | None = None,
    ) -> None:
        self.agent = JobAgent(folder / "a.sock")
        self.agent.listen()
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        env = self.agent.environment() | env
        self.process: Any
        errors = folder / "errors"
        if warm is not None:
            options = {**options, "errors": str(errors)}
        argv = [sys.executable, "-m", "skep_job", str(script), json.dumps(options)]
        if warm is not None:
            self.process = warm.fork(argv, env, errors)
        else:
            self.process = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        self.pid = self.process.pid
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def order(self, kind: str, **fields: object) -> None:
        """Send what an agent sends."""
        self.agent.tell(encode({"type": kind, "job": "j7", **fields}))

    def go(self, word: str = "go") -> None:
        """Release a hold."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def wait_holding(self, step: int) -> None:
        """Return once it holds before mini-batch `step`."""
        self._wait(lambda: any(line.get("holds") == step for line in self.lines))

    def end(self) -> int:
        """Return the exit status; all it printed is there then."""
        status: int = self.process.wait(DEADLINE_S)
        for thread in self._threads:
            thread.join(DEADLINE_S)
        return status

    def said(self, name: str) -> Any:
        """Return the value last printed under `name`."""
        return next(line[name] for line in reversed(self.lines) if name in line)

    def wait_told(self, kind: str, **fields: object) -> Message:
        """Return what it tells its agent; fails at once if it tells the contrary, or ends."""
        agent, contrary = self.agent, OPPOSITE.get(kind, "bye")

        def is_told(agent: JobAgent) -> bool:
            gone = agent.accepted and not agent.open_connections
            return bool(gone or agent.of_type(kind, **fields) or agent.of_type(contrary, **fields))

        agent.wait_until(is_told)
        told = agent.of_type(kind, **fields)
        words = [message for message in agent.received if message["type"] != "stats"]
        assert told, f"did not say {kind} {fields}: {words[-5:]} {''.join(self.errors)[-2000:]}"
        return told[-1]

    def wait_any(self, kinds: Sequence[str], **fields: object) -> Message:
        """Return the first message of one of these kinds."""

        def found(agent: JobAgent) -> list[Message]:
            return [message for kind in kinds for message in agent.of_type(kind, **fields)]

        self.agent.wait_until(found)
        return found(self.agent)[0]

    def answers(self, *kinds: str) -> list[Message]:
        """Return what it told its agent, of these kinds."""
        return [message for message in list(self.agent.received) if message["type"] in kinds]

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.end()
        self.agent.stop()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                if line.startswith("{"):
                    self.lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors += list(self.process.stderr)

    def _wait(self, condition: Any) -> None:
        with self._changed:
            reached = self._changed.wait_for(
                lambda: condition() or self.process.poll() is not None, DEADLINE_S
            )
            if not reached or not condition():
                raise TimeoutError(f"{self.process.poll()}: {self.lines} {''.join(self.errors)}")


class ElasticGang:
    """What an agent has of one gang: members in the order they were started."""

    def __init__(
        self, folder: Path, script: Path = SCRIPT, *, store: Store | None = None, **options: Any
    ) -> None:
        self._folder = folder
        self.checkpoints = folder / "checkpoints"
        self._script = script
        self._options = options
        self.store = store or Store()
        self._own_store = store is None
        self.members: list[Member] = []
        self._order = 0
        self.generation = 0
        self.attempt = 3
        self.env: dict[str, str] = {}
        """Variables of every member."""
        self.memory: Path | None = None
        """Where nodes have a folder each that stands for their memory; None: they have none."""
        self.node_of: Callable[[int], int] = lambda _rank: 0
        """The node that a rank is started on."""
        self.warm: Warm | None = None
        """What ranks are forked from; None: they are executed."""

    def __enter__(self) -> ElasticGang:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            for member in self.members:
                print(member.pid, "".join(member.errors)[-3000:], member.lines[-1:])
                print(*(m for m in member.agent.received if m["type"] != "stats"), sep="\n")
        for member in self.members:
            member.close()
        if self._own_store:
            self.store.process.kill()
            self.store.close()

    def start(self, rank: int, world: int, *, awaits: str = "", **options: Any) -> Member:
        """Start one process, of the first gang or as a newcomer or successor."""
        folder = self._folder / str(len(self.members))
        folder.mkdir()
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "SKEP_STORE": f"{self.store.host}:{self.store.port}",
            "OMP_NUM_THREADS": "1",
            "SKEP_CHECKPOINTS": str(self.checkpoints),
            "SKEP_GEN": str(self.attempt),
        }
        if self.memory is not None:
            env["SKEP_REPLICAS"] = str(self.memory / str(self.node_of(rank)))
            env["SKEP_REPLICA_BYTES"] = str(REPLICA_BYTES)
        if awaits:
            env |= {"SKEP_AWAITS": awaits, "SKEP_HOST": "127.0.0.1"}
        env |= self.env
        member = Member(self._script, folder, env, {**self._options, **options}, self.warm)
        self.members.append(member)
        return member

    def newcomer(self, rank: int, **options: Any) -> Member:
        """Start a process that is to have this rank, and return once it is ready."""
        member = self.start(rank, 0, awaits="generation-1", **options)
        member.wait_told("ready")
        return member

    def overtake(self) -> int:
        """Return the number of an order that is given by other means."""
        self._order += 1
        return self._order

    def checkpoint(self, step: int, *members: Member) -> None:
        """Have a checkpoint written after mini-batch `step`."""
        self._order += 1
        for member in members:
            member.order("checkpoint", order=self._order, path="", step=step)

    def rescale(
        self,
        places: dict[Member, int],
        step: int = 0,
        *,
        agree: bool = False,
        generation: int = 0,
        world: int = 0,
        store: Store | None = None,
    ) -> int:
        """Order members to their new ranks (-1: it leaves) from after `step` on.

        `agree`: from after the mini-batch that they agree on.
        """
        self._order += 1
        self.generation = generation or self.generation + 1
        at = store or self.store
        world = world or sum(rank >= 0 for rank in places.values())
        for member, rank in places.items():
            member.order(
                "rescale",
                order=self._order,
                generation=self.generation,
                world=world,
                rank=max(rank, 0),
                leaves=rank < 0,
                host=at.host,
                port=at.port,
                step=step,
                agree=agree,
            )
        return self._order


@contextlib.contextmanager
def elastic_gang(script: Path = SCRIPT, **options: Any) -> Iterator[ElasticGang]:
    """Yield a gang with nobody in it."""
    with (
        tempfile.TemporaryDirectory(prefix="skep-") as folder,
        ElasticGang(Path(folder), script, **options) as gang,
    ):
        yield gang
