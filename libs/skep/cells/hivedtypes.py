"""Read the cell types of a HiveD configuration; shared helpers of its readers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from skep.cells.clustercheck import GPUS_MAX, LEVELS_MAX, problem
from skep.wire.parse import kind_of, nearest
from skep.wire.reasons import Reason
from skep.wire.spec import Problem

TYPE_KEYS = ("childCellType", "childCellNumber", "isNodeLevel")


class CellType(NamedTuple):
    """One entry of `cellTypes`."""

    child: str
    number: int
    is_node: bool


class Shape(NamedTuple):
    """A top cell type in full: type names and fan-outs from the top down to the GPU."""

    types: tuple[str, ...]
    fanouts: tuple[int, ...]
    node: int
    """The position of the node level in `types`."""


class TypeReader:
    """Reads the cell types, and collects what is wrong and what is ignored."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.types: dict[str, CellType] = {}
        self.bad_types: dict[str, bool] = {}
        self.shapes: dict[str, Shape | None] = {}

    def add(self, path: str, reason: Reason, text: str, suggestion: str = "") -> None:
        self.problems.append(problem(path, reason, text, suggestion))

    def warn(self, path: str, reason: Reason, text: str, suggestion: str = "") -> None:
        self.warnings.append(problem(path, reason, text, suggestion))

    def wrong_type(self, path: str, wanted: str, value: Any, suggestion: str = "") -> None:
        text = f"must be {wanted}, not {kind_of(value)}"
        self.add(path, Reason.WRONG_TYPE, text, suggestion)

    def mapping(self, value: Any, path: str) -> dict[str, Any]:
        """Return an object with its keys as text; nothing for what is absent or none."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong_type(path, "an object", value)
            return {}
        return {str(key): inner for key, inner in value.items()}

    def listing(self, value: Any, path: str) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            self.wrong_type(path, "a list", value)
            return []
        return value

    def keys(self, tree: dict[str, Any], known: tuple[str, ...], path: str) -> None:
        """Warn of keys that the original silently ignores."""
        for key in tree:
            if key not in known:
                hint = nearest(key, list(known)) or f"known are {', '.join(known)}"
                text = f"unknown key `{key}` is ignored"
                self.warn(f"{path}.{key}", Reason.UNKNOWN_KEY, text, hint)

    def ignored(self, tree: dict[str, Any], which: dict[str, str], path: str) -> None:
        for key, why in which.items():
            if key in tree:
                text = f"`{key}` is ignored: {why}"
                self.warn(f"{path}.{key}", Reason.IGNORED_KEY, text)

    def count(self, tree: dict[str, Any], key: str, path: str) -> int | None:
        value = tree.get(key)
        if type(value) is int:
            return value
        if key not in tree:
            self.add(f"{path}.{key}", Reason.MISSING_KEY, f"`{key}` is required")
        else:
            self.wrong_type(f"{path}.{key}", "a whole number", value)
        return None

    # --- cell types -------------------------------------------------------------------------------

    def cell_type(self, name: str, value: Any, path: str) -> None:
        before = len(self.problems)
        if not isinstance(value, dict):
            self.wrong_type(path, "an object", value)
            self.bad_types[name] = True
            return
        tree = self.mapping(value, path)
        self.keys(tree, TYPE_KEYS, path)
        child = tree.get("childCellType")
        if isinstance(child, int) and not isinstance(child, bool):
            child = str(child)
        if not isinstance(child, str) or not child:
            here = f"{path}.childCellType"
            if child is None or child == "":
                self.add(here, Reason.MISSING_KEY, "`childCellType` is required")
            else:
                self.wrong_type(here, "the name of a cell type", child)
        number = self.count(tree, "childCellNumber", path)
        if number is not None and not 1 <= number <= GPUS_MAX:
            text = f"a {name} is made of {number} children; give 1 or more"
            self.add(f"{path}.childCellNumber", Reason.WRONG_FANOUT, text)
        is_node = tree.get("isNodeLevel", False)
        if not isinstance(is_node, bool):
            self.wrong_type(f"{path}.isNodeLevel", "true or false", is_node)
        if len(self.problems) > before:
            self.bad_types[name] = True
        elif isinstance(child, str) and number is not None:
            self.types[name] = CellType(child, number, bool(is_node))

    def shape(self, top: str, path: str) -> Shape | None:
        """Return a top type in full; report once what is wrong with it."""
        if top not in self.shapes:
            self.shapes[top] = self._shape(top, path)
        return self.shapes[top]

    def _shape(self, top: str, path: str) -> Shape | None:
        if top in self.bad_types:
            return None
        if top not in self.types:
            text = f"no cell type {top!r}"
            hint = nearest(top, list(self.types)) or "describe it in cellTypes"
            self.add(path, Reason.UNKNOWN_CELL_TYPE, text, hint)
            return None
        types, fanouts = [top], [1]
        while types[-1] in self.types:
            below = self.types[types[-1]]
            if below.child in types:
                text = f"the type is made of itself: {' > '.join([*types, below.child])}"
                self.add(
                    f"$.physicalCluster.cellTypes.{types[-1]}.childCellType",
                    Reason.BAD_VALUE,
                    text,
                    "cell types form trees",
                )
                return None
            types.append(below.child)
            fanouts.append(below.number)
        if types[-1] in self.bad_types:
            return None
        here = f"$.physicalCluster.cellTypes.{top}"
        nodes = [at for at, name in enumerate(types[:-1]) if self.types[name].is_node]
        if len(nodes) != 1:
            way = " > ".join(types)
            known = [name for name in self.types if name not in types]
            hint = nearest(types[-1], known)
            hint = hint and f"`{types[-1]}` has no entry in cellTypes: {hint}"
            text = f"{len(nodes)} of the levels {way} have isNodeLevel; exactly one must"
            self.add(here, Reason.BAD_VALUE, text, hint or "set it on the type that is one machine")
            return None
        if len(types) > LEVELS_MAX + 1:
            self.add(here, Reason.BAD_VALUE, f"more than {LEVELS_MAX} levels")
            return None
        if (size := math.prod(fanouts)) > GPUS_MAX:
            text = f"one {top} would have {size} GPUs; at most {GPUS_MAX}"
            self.add(here, Reason.WRONG_FANOUT, text)
            return None
        return Shape(tuple(types), tuple(fanouts), nodes[0])
