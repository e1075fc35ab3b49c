"""Which part of its devices' memory this process may use while other jobs are on them, too.

    start    SKEP_MEMORY_SHARE says it, 0 or nothing: all of it
    later    the agent says `share`, and hears `shared` with the bytes that are in use

It is a limit on what is asked for: what a process has it keeps, also above a share that became
smaller, and what it asks for beyond is refused like memory that a device does not have. On CUDA
devices PyTorch's own allocator keeps to it (`set_per_process_memory_fraction`: what it reserves,
without the CUDA context); on fake ones `skep_job.devices.fake_gpus` does. Nothing here raises into
the script but that refusal.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from skep_job.link.orders import Control, Message, describe
from skep_job.observe.import_watcher import ImportWatcher
from skep_job.observe.reporter import complain

if TYPE_CHECKING:
    from skep_job.devices.fake_gpus import Attachment

VARIABLE = "SKEP_MEMORY_SHARE"
CUDA = "torch.cuda"
NO_DEVICE = "this process uses no device whose memory could be limited"


class MemoryShare:
    """The share of one process."""

    def __init__(self, environ: Mapping[str, str], fake: Attachment | None = None) -> None:
        """Keep to what `environ` says; `fake` are the process's fake devices, if it has some."""
        self._fake = fake
        self._devices = environ.get("SKEP_DEVICES", "").count(",") + 1
        self._among = 1  # processes of the rank that are on one device
        self._cuda_hidden = environ.get("CUDA_VISIBLE_DEVICES") == ""
        self._control = Control()
        self._waits = False
        self.share = read(environ)
        if self.share:
            self._keep_to_it()

    def divide(self, processes: int) -> None:
        """Keep to this process's part of what so many processes of the rank have together."""
        self._among = max(1, -(-processes // self._devices))
        if self.share and self._among > 1:
            self._keep_to_it()

    def install(self, control: Control) -> None:
        """Take the agent's orders from here on."""
        self._control = control
        control.at_once("share", self._take)

    @property
    def _own(self) -> float:
        return self.share / self._among

    def can(self) -> list[str]:
        """Return the name of what this process can do, if it can."""
        return ["share"] if self._fake is not None or _ready_cuda() is not None else []

    def away(self) -> None:
        """Take it that the state has left the devices."""
        if self._fake is not None:
            self._fake.away()

    @contextlib.contextmanager
    def taking_back(self) -> Iterator[None]:
        """Let the state return, whatever the share is by now: the script had that much before.

        Raises:
            OutOfMemoryError: The device has no room for it.
        """
        if self._fake is not None:
            self._fake.back()
        cuda = _ready_cuda() if self.share else None
        try:
            if cuda is not None:
                _try_limit(cuda, 0.0)
            yield
        except BaseException:
            self.away()
            raise
        finally:
            if cuda is not None:
                _try_limit(cuda, self._own)

    # --- on the reporter's thread ------------------------------------------------------------

    def _take(self, message: Message) -> object:
        share = message.get("share", 0.0)
        if not _is_share(share):
            self._control.fail(message, f"share is {share!r}, expected a number from 0 to 1")
            return True
        assert isinstance(share, int | float)
        self.share = float(share)
        used = self._keep_to_it()
        if used is None:
            self._control.fail(message, NO_DEVICE)
        else:
            self._control.say("shared", order=message["order"], share=self.share, used=used)
        return True

    def _keep_to_it(self) -> int | None:
        """Set the limit; return the bytes in use, None if this process has no device."""
        if self._fake is not None:
            self._fake.limit.share = self._own
            return self._fake.used()
        cuda = _ready_cuda()
        if cuda is not None:
            return _limit(cuda, self._own)
        if self._cuda_hidden:
            return None
        if not self._waits:
            self._waits = True
            ImportWatcher({CUDA: self._on_import}).install()
        return 0

    def _on_import(self, cuda: ModuleType) -> None:
        try:
            cuda._lazy_call(self._when_ready)
        except Exception as error:  # Another PyTorch than those known, or one half imported.
            self._waits = False
            _complain(error)

    def _when_ready(self) -> None:
        """Set the limit as soon as the script has begun to use CUDA."""
        _try_limit(sys.modules[CUDA], self._own)  # In the midst of the script's first use of CUDA.


def read(environ: Mapping[str, str]) -> float:
    """Return the share in the environment.

    Returns:
        0 to 1; 0.0: all of the memory, or the variable cannot be read.
    """
    text = environ.get(VARIABLE, "")
    try:
        share = float(text or 0)
    except ValueError:
        share = math.nan
    if _is_share(share):
        return share
    _complain(f"{VARIABLE} is {text[:40]!r}, expected a number from 0 to 1")
    return 0.0


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _ready_cuda() -> ModuleType | None:
    """Return PyTorch's CUDA module if the script uses CUDA."""
    cuda = sys.modules.get(CUDA)
    is_initialized = vars(cuda).get("is_initialized") if cuda is not None else None
    return cuda if is_initialized is not None and is_initialized() else None


def _limit(cuda: ModuleType, share: float) -> int:
    """Have PyTorch's allocator keep to a share of every device; return what it has of the fullest.

    Raises RuntimeError.
    """
    devices = range(cuda.device_count())
    for device in devices:
        cuda.set_per_process_memory_fraction(share or 1.0, device)
    return max((int(cuda.memory_reserved(device)) for device in devices), default=0)


def _try_limit(cuda: ModuleType, share: float) -> None:
    try:
        _limit(cuda, share)
    except Exception as error:  # It is the script that is running.
        _complain(error)


def _complain(what: object) -> None:
    complain(f"no limit of device memory: {describe(what)}")
