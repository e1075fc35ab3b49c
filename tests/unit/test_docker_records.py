"""What is read of what a container says."""

from pathlib import Path

from skep_services.adapters.docker_entry import EXECUTED
from skep_services.adapters.docker_records import SAID_BYTES_MAX, Records


def test_what_a_command_adds_to_what_was_said_of_it_counts_for_nothing(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.open()
    said = records.provide("t")
    assert records.said("t") == ""
    for added in ("", "no such thing\n", "x" * 10 * SAID_BYTES_MAX):
        said.write_text(f"{EXECUTED}\n{added}")
        assert records.said("t") == EXECUTED
    said.write_text("no " + "x" * 10 * SAID_BYTES_MAX)
    assert len(records.said("t")) == SAID_BYTES_MAX
