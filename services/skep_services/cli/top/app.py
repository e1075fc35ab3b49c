"""The screen of `skep top`: a line of counts, a table, a pane about one job, and the keys."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.widgets import DataTable, Input, Static

from skep_services.cli import render
from skep_services.cli.top import texts
from skep_services.cli.top.feed import Feed, Seen

TICK_S = 1.0
"""How often ages go on."""
PANE_PART = 0.45
"""The part of the screen that is the lower pane's."""
STYLES = {"31": "red", "32": "green", "33": "yellow", "35": "magenta", "36": "cyan"}
"""Textual's words for the colours of states."""


class Top(App[Exception]):
    """The screen. It returns what stopped it, or nothing.

    Args:
        feed: Fetches what is shown.
    """

    CSS = """
    Screen { layers: base; background: ansi_default; }
    #head { height: 1; background: ansi_blue; color: ansi_bright_white; text-style: bold; }
    #list { height: 1fr; background: ansi_default; scrollbar-size: 1 1; }
    #list > .datatable--header { background: ansi_default; color: ansi_default;
        text-style: bold underline; }
    #list > .datatable--cursor { background: ansi_default; color: ansi_default;
        text-style: reverse; }
    #title { height: 1; background: ansi_default; color: ansi_default; text-style: bold; }
    #pane { height: 45%; background: ansi_default; scrollbar-size: 1 1; }
    #about { height: auto; background: ansi_default; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #keys { height: 1; background: ansi_default; color: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "quit", priority=False),
        Binding("1", "view('jobs')", "jobs"),
        Binding("2", "view('nodes')", "nodes"),
        Binding("3", "view('vcs')", "VCs"),
        Binding("w", "pane('why')", "why"),
        Binding("l", "pane('output')", "logs"),
        Binding("d", "pane('details')", "details"),
        Binding("p", "fold", "pane"),
        Binding("s", "sort", "sort"),
        Binding("r", "turn", "turn round"),
        Binding("a", "ended", "ended too"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "all", "all again", show=False),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, feed: Feed) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"  # Only colours that are the terminal's own: light ones work too.
        self._feed = feed
        self._seen = Seen()
        self._chosen = ""
        """The id of the chosen job."""
        self._filter = ""
        self._shape: tuple[Any, ...] = ()
        """What the table's columns are now: they are made anew only when it differs."""
        self._pane = feed.wish.pane

    def compose(self) -> ComposeResult:
        """Make the parts of the screen."""
        yield Static(id="head", markup=False)
        yield DataTable(id="list", cursor_type="row", zebra_stripes=False, cell_padding=1)
        yield Static(id="title", markup=False)
        with VerticalScroll(id="pane", can_focus=False):
            yield Static(id="about", markup=False)
        yield Input(id="filter", placeholder="a part of a name, user, VC or id", compact=True)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        """Begin to fetch."""
        self.query_one("#list", DataTable).focus()
        self.set_interval(TICK_S, self.draw)
        self._feed.start(self._show)

    def on_unmount(self) -> None:
        """Fetch nothing more."""
        self._feed.close()

    def _show(self, seen: Seen) -> None:
        """Take over what was seen: called by the feed, in its thread."""
        if self.is_running:
            self.call_later(self._took, seen)

    def _took(self, seen: Seen) -> None:
        self._seen = seen
        self.draw()

    # --- drawing -------------------------------------------------------------------------------

    def draw(self) -> None:
        """Bring the screen up to date."""
        seen, width = self._seen, self.size.width
        if not width:
            return
        rows = self._rows()
        if self._feed.wish.view == "jobs" and not any(r["job"] == self._chosen for r in rows):
            self._choose(rows[0]["job"] if rows else "")
        wish = self._feed.wish
        chosen = f"by {wish.order}" if wish.order != texts.ORDERS[0] else ""
        chosen += f"  /{self._filter}" if self._filter else ""
        told = texts.head(seen.jobs, seen.total, chosen, seen.at, seen.error, width)
        self.query_one("#head", Static).update(told)
        self._draw_table(rows, width)
        self._draw_pane(width)
        self.query_one("#keys", Static).update(self._keys(width))

    def _rows(self) -> texts.Rows:
        if self._feed.wish.view == "jobs":
            return texts.matching(self._seen.jobs, self._filter)
        return self._seen.things if self._seen.wish.view == self._feed.wish.view else []

    def _draw_table(self, rows: texts.Rows, width: int) -> None:
        view = self._feed.wish.view
        table: DataTable[Text] = self.query_one("#list", DataTable)
        # The space before the first cell and behind the last, and the scrollbar if there is one.
        room = width - 2 - (len(rows) >= table.size.height)
        made = texts.columns(view, rows, time.time_ns(), room)
        key = {"jobs": "job", "nodes": "node"}.get(view, "vc")
        ids = [str(row[key]) for row in rows]
        shape = (view, *((column.title, column.width) for column in made))
        if (shape, ids) != self._shape:
            self._remake(table, made, ids)
            self._shape = (shape, ids)
            return
        for place, column in enumerate(made):
            for number, cell in enumerate(_styled(column)):
                where = Coordinate(number, place)
                if table.get_cell_at(where) != cell:
                    table.update_cell_at(where, cell)

    def _remake(self, table: DataTable[Text], made: list[render.Column], ids: list[str]) -> None:
        """Fill the table anew: rows came or went, or columns changed."""
        top = table.scroll_y
        table.clear(columns=True)
        for column in made:
            title = column.title.rjust(column.width) if column.right else column.title
            table.add_column(Text(title), width=column.width)
        cells = zip(*(_styled(column) for column in made), strict=True)
        for key, each in zip(ids, cells, strict=True):
            table.add_row(*each, key=key)
        if self._chosen in ids:
            table.move_cursor(row=ids.index(self._chosen), animate=False)
        table.scroll_to(y=top, animate=False)

    def _draw_pane(self, width: int) -> None:
        wish, seen = self._feed.wish, self._seen
        open_pane = bool(wish.pane) and wish.view == "jobs"
        for name in ("#pane", "#title"):
            self.query_one(name).display = open_pane
        if not open_pane:
            return
        row = next((one for one in seen.jobs if one["job"] == self._chosen), None)
        label = f"{row['job']} {render.printable(row['name'])}: " if row is not None else ""
        told = f"-- {label}{texts.PANES[wish.pane]} " if row is not None else "-- no job "
        if seen.error:
            told = f"-- {seen.error} "
        self.query_one("#title", Static).update(told[:width].ljust(width, "-"))
        if seen.wish.job != self._chosen or seen.wish.pane != wish.pane:
            self.query_one("#about", Static).update("..." if row is not None else "")
            return
        scroll = self.query_one("#pane", VerticalScroll)
        if wish.pane == "output":
            at_end = scroll.scroll_y >= scroll.max_scroll_y - 1
            lines = [render.printable(each) for each in seen.output.splitlines()]
            self.query_one("#about", Static).update("\n".join(lines[-1000:]))
            if at_end:
                scroll.scroll_end(animate=False)
            return
        rates = self._feed.rates.get(self._chosen, ())
        lines = texts.pane(wish.pane, row, seen.about, rates, width - 2)
        self.query_one("#about", Static).update("\n".join(lines))

    @staticmethod
    def _keys(width: int) -> Text:
        text = Text()
        for key, meaning in texts.KEYS:
            if text.cell_len + len(key) + len(meaning) + 1 > width:
                break
            text.append(key, style="bold cyan")
            text.append(f" {meaning} ")
        return text

    # --- keys ----------------------------------------------------------------------------------

    def on_resize(self, event: Resize) -> None:
        """Draw for another size."""
        del event
        self.draw()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Choose the job of a row; the cursor may have moved on since."""
        job, here = event.row_key.value, event.data_table.cursor_row
        if self._feed.wish.view == "jobs" and event.cursor_row == here and job != self._chosen:
            self._choose(job or "")
            self.draw()

    def _choose(self, job: str) -> None:
        self._chosen = job
        self._want(job=job)

    def _want(self, **changes: Any) -> None:
        self._feed.want(self._feed.wish._replace(**changes))

    def action_view(self, view: str) -> None:
        """Show jobs, nodes or virtual clusters."""
        self._want(view=view)
        self.draw()

    def action_pane(self, pane: str) -> None:
        """Show something else of the chosen job."""
        self._pane = pane
        self._want(pane=pane, view="jobs")
        self.query_one("#pane", VerticalScroll).scroll_home(animate=False)
        self.draw()

    def action_fold(self) -> None:
        """Have the pane away, or back."""
        self._want(pane="" if self._feed.wish.pane else self._pane)
        self.draw()

    def action_sort(self) -> None:
        """Sort by what is next."""
        orders, now = texts.ORDERS, self._feed.wish.order.removeprefix("-")
        self._want(order=orders[(orders.index(now) + 1) % len(orders)])
        self.draw()

    def action_turn(self) -> None:
        """Turn the order round, where it is a column's."""
        order = self._feed.wish.order
        if order not in {"queue", "newest"}:
            self._want(order=order[1:] if order.startswith("-") else f"-{order}")
            self.draw()

    def action_ended(self) -> None:
        """Show ended jobs too, or no more."""
        self._want(ended=not self._feed.wish.ended)

    def action_filter(self) -> None:
        """Ask for the text to filter by."""
        given = self.query_one("#filter", Input)
        given.display = True
        given.value = self._filter
        given.focus()

    def action_all(self) -> None:
        """Filter no more."""
        self._filtered("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is being written."""
        self._filter = event.value
        self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter."""
        self._filtered(event.value)

    def _filtered(self, text: str) -> None:
        self._filter = text
        given = self.query_one("#filter", Input)
        given.value = text
        given.display = False
        self.query_one("#list", DataTable).focus()
        self.draw()

    def action_move(self, rows: int) -> None:
        """Choose the row below, or above."""
        table = self.query_one("#list", DataTable)
        table.move_cursor(row=table.cursor_row + rows)


def _styled(column: render.Column) -> list[Text]:
    """Return the cells of a column as they are drawn."""
    if column.coloured:
        codes = [render.COLOURS.get(cell, "") for cell in column.cells]
        return [
            Text(cell, style=STYLES.get(code, ""))
            for cell, code in zip(column.cells, codes, strict=True)
        ]
    cells = column.cells
    return [Text(cell.rjust(column.width) if column.right else cell) for cell in cells]
