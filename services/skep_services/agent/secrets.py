"""Secrets of jobs on this node: fetched from the vault for a start, and kept nowhere else.

Values of `secrets` go into the environment of the job's processes. Those of `secret_files` go into
files in memory (`/dev/shm`), which are removed when the run is over.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from skep.ids import attempt_id
from skep.wire import codec, subjects
from skep.wire.bounds import UNDECODABLE
from skep.wire.commands import BindJob
from skep.wire.reasons import Reason
from skep.wire.runs import RunNotStarted
from skep.wire.vault import SECRETS_PER_ASK_MAX, AskSecrets, SecretsGiven
from skep_services.ports import Bus, RefusedError
from skep_services.vault import boxes

ASK_WITHIN_S = 2.0
ASKED_TIMES = 5
ASK_AGAIN_S = 0.2
"""The vault follows the allocator's log, and may hear of a job a moment after the node."""
MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of this node's own is made in it

_GIVEN = msgspec.json.Decoder(SecretsGiven)


class SecretsRefusedError(Exception):
    """There are no secrets for a job. `of_node`: another node might get them."""

    def __init__(self, text: str, *, of_node: bool) -> None:
        super().__init__(text)
        self.of_node = of_node


class JobSecrets:
    """Fetches secrets, and keeps the files of runs.

    Args:
        bus: Where the vault is asked.
        state: The agent's state folder, after which the folder in memory is named.
    """

    def __init__(self, bus: Bus, state: Path) -> None:
        self._bus = bus
        name = hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:16]
        within = MEMORY if os.access(MEMORY, os.W_OK) else state
        self.folder = within / f"skep-{os.getuid()}-{name}"

    async def provide(
        self, command: BindJob, token: str, files: dict[str, bytes] | None = None
    ) -> dict[str, str] | RunNotStarted:
        """Return the variables that a run gets for its secrets; files are there then.

        Args:
            command: The job's part on this node.
            token: The run.
            files: Takes what goes into files, by variable, instead of files that this makes.
        """
        names = tuple(dict.fromkeys((*command.secrets.values(), *command.secret_files.values())))
        if not names:
            return {}
        try:
            values: dict[str, bytes] = {}
            for at in range(0, len(names), SECRETS_PER_ASK_MAX):
                values |= await self._fetch(command, names[at : at + SECRETS_PER_ASK_MAX])
            found = {
                variable: _text(name, values[name]) for variable, name in command.secrets.items()
            }
            for variable, name in command.secret_files.items():
                if files is None:
                    found[variable] = str(self._write(token, variable, values[name]))
                else:
                    files[variable] = values[name]
        except SecretsRefusedError as error:
            self.forget(token)
            return RunNotStarted(token, str(error), of_node=error.of_node)
        except OSError as error:
            self.forget(token)
            text = f"files of secrets cannot be written to {self.folder}: {error.strerror}"
            return RunNotStarted(token, text, of_node=True)
        return found

    async def value(self, command: BindJob, name: str) -> bytes:
        """Return the value of a secret that no process of the job gets.

        Raises:
            SecretsRefusedError: The job may not have it, or no vault answers.
        """
        return (await self._fetch(command, (name,)))[name]

    def forget(self, token: str) -> None:
        """Remove the files of a run that is over."""
        shutil.rmtree(self._of(token), ignore_errors=True)

    def keep_only(self, tokens: Iterable[str]) -> None:
        """Remove the files of all other runs: of those that ended while no agent was there."""
        kept = {self._of(token).name for token in tokens}
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if path.name not in kept:
                    shutil.rmtree(path, ignore_errors=True)

    def _of(self, token: str) -> Path:
        return self.folder / hashlib.sha256(token.encode()).hexdigest()[:32]

    def _write(self, token: str, variable: str, value: bytes) -> Path:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if self.folder.is_symlink() or self.folder.stat().st_uid != os.getuid():
            text = f"{self.folder} belongs to another user: remove it"
            raise SecretsRefusedError(text, of_node=True)
        folder = self._of(token)
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / variable
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as file:
            file.write(value)
        return path

    async def _fetch(self, command: BindJob, names: tuple[str, ...]) -> dict[str, bytes]:
        key = boxes.new_key()
        ask = AskSecrets(
            node=command.node,
            job=command.job,
            attempt=command.attempt,
            key=bytes(key.public_key),
            names=names,
        )
        given = await self._ask(ask)
        if given.refused is not None:
            of_node = given.refused is Reason.NOT_BOUND_HERE
            text = f"{given.text} ({given.refused})"
            raise SecretsRefusedError(text, of_node=of_node)
        try:
            return {name: boxes.opened(given.sealed[name], key) for name in names}
        except (boxes.BoxError, KeyError) as error:
            text = "the vault's answer cannot be opened"
            raise SecretsRefusedError(text, of_node=True) from error

    async def _ask(self, ask: AskSecrets) -> SecretsGiven:
        payload, given = codec.encode(ask), None
        for _ in range(ASKED_TIMES):
            try:
                subject = subjects.vault(ask.node)
                answer = await self._bus.request(subject, payload, {}, ASK_WITHIN_S)
            except RefusedError as error:
                text = f"the bus does not let this node ask for secrets: {error}"
                raise SecretsRefusedError(text, of_node=True) from error
            if answer is not None:
                try:
                    given = _GIVEN.decode(answer.payload)
                except UNDECODABLE as error:
                    text = f"the vault's answer cannot be read: {error}"
                    raise SecretsRefusedError(text, of_node=True) from error
                if given.refused is not Reason.NOT_BOUND_HERE:
                    return given
            await asyncio.sleep(ASK_AGAIN_S)
        if given is not None:
            return given
        text = (
            f"no vault answers for the secrets of {attempt_id(ask.job, ask.attempt)}: this cluster "
            f"keeps none (`skep up --secrets`), or it is away ({Reason.NO_VAULT})"
        )
        raise SecretsRefusedError(text, of_node=True)


def _text(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        message = f"the secret {name} is no text that a variable can hold: use `secret_files`"
        raise SecretsRefusedError(message, of_node=False)
    return text
