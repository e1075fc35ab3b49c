"""Certificates of a cluster: who issues them, what they say, and the TLS contexts made of them.

`authority` and `requests` make certificates (with `cryptography`), `certificates` reads them, and
`files` turns files into contexts that follow their replacement (standard library only).
"""
