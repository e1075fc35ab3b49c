"""Publish one job spec with a plain NATS client. Nothing of Skep is imported.

    python publish.py URL USER PASSWORD VC KEY < spec.json

Prints one JSON object: the stream's sequence (the job is `j<sequence>`), how long the durable
acknowledgement took, and the verdict.
"""

import asyncio
import json
import sys
import time

import nats


async def main(url: str, user: str, password: str, vc: str, key: str) -> None:
    """Publish standard input, wait for the acknowledgement and the verdict."""
    client = await nats.connect(
        url, user=user, password=password, inbox_prefix=f"_INBOX.{user}".encode()
    )
    verdicts = await client.subscribe(f"skep.v1.reply.{vc}.{key}")
    await client.flush()
    print("connected", file=sys.stderr, flush=True)
    spec = sys.stdin.buffer.read()
    began = time.perf_counter()
    acknowledged = await client.jetstream().publish(
        f"skep.v1.submit.{vc}",
        spec,
        headers={"Nats-Msg-Id": key, "Skep-Reply": f"skep.v1.reply.{vc}.{key}"},
    )
    took_ms = (time.perf_counter() - began) * 1000
    verdict = await verdicts.next_msg(timeout=10)
    print(
        json.dumps(
            {
                "sequence": acknowledged.seq,
                "acknowledged_ms": round(took_ms, 2),
                "verdict": json.loads(verdict.data),
            }
        )
    )
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
