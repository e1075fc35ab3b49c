"""The page at `/`: one file, nothing from elsewhere, and a policy that lets it do nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

PAGE = Path(__file__).with_name("page.html").read_bytes()


def _hash_of(tag: bytes) -> str:
    """Return the one inline script or style as a source of the content security policy."""
    inline = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), PAGE, re.DOTALL)
    assert len(inline) == 1, tag
    digest = hashlib.sha256(inline[0]).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_hash_of(b'script')}",
        f"style-src {_hash_of(b'style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Job names come from tenants: should one ever end up as markup, it still cannot run."""
