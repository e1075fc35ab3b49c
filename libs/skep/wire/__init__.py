"""Everything that crosses a process: specs, commands, reports, findings, advice, facts, reasons.

Messages are frozen, tagged and keyword-only; they grow only at the end, with defaults.
"""
