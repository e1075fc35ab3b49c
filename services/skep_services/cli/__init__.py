"""The `skep` command.

Start-up is part of the product: nothing here imports asyncio, a bus client or a web framework, and
each command's module is imported only when that command runs.
"""
