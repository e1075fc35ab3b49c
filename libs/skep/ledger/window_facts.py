"""Windows for which nodes are kept free, as the facts tell them."""

from __future__ import annotations

from skep.ledger import cell_facts
from skep.ledger.state import ClusterState
from skep.wire.windows import Window, WindowBegan, WindowBooked, WindowEnded


def apply(state: ClusterState, fact: WindowBooked | WindowBegan | WindowEnded) -> None:
    """Take over one fact."""
    match fact:
        case WindowBooked(window=window):
            state.windows[window.name] = window
        case WindowBegan(name=name):
            opened = {**state.opened, name: None}
            state.opened = {each: None for each in state.windows if each in opened}
            _close(state, state.windows[name], closed=True)
        case WindowEnded(name=name):
            window = state.windows.pop(name)
            if state.opened.pop(name, window) is None:
                _close(state, window, closed=False)
            state.delta.freed += 1
            state.delta.claims += tuple(state.reserved)


def kept(state: ClusterState, window: Window, *, opened: bool) -> None:
    """Take over a window from a snapshot."""
    state.windows[window.name] = window
    if opened:
        state.opened[window.name] = None
        _note(state, window, closed=True)  # What is bad of the cells is kept with them.


def _close(state: ClusterState, window: Window, *, closed: bool) -> None:
    """Have the nodes of a window for maintenance be closed to work, or open again."""
    if not _note(state, window, closed=closed):
        return
    state.delta.freed += 1
    state.delta.claims += tuple(state.reserved)
    cell_facts.health(state, window.nodes)


def _note(state: ClusterState, window: Window, *, closed: bool) -> bool:
    """Note on the nodes of a window for maintenance whether it is open; return if it is such."""
    nodes = () if window.vc else window.nodes
    for node in filter(None, map(state.nodes.get, nodes)):
        node.maintained = closed
    return bool(nodes)
