"""``python -m stitchcuda.training.adapters``: a reward server of its own, until it is interrupted."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from stitchcuda.errors import StitchError
from stitchcuda.training.adapters.scorer import open_service
from stitchcuda.training.adapters.server import RewardServer, new_token, own_address


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted; prints the address once it listens. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m stitchcuda.training.adapters", description=__doc__)
    parser.add_argument("--compute", default="local", help="local, spool:DIR, ray[:ADDRESS] or recorded:PATH")
    parser.add_argument("--target", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 lets other nodes ask")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token-file", type=Path, required=True, help="is written anew; clients read it")
    parser.add_argument("--cache", type=Path, default=None, help="file that keeps what was measured")
    parser.add_argument(
        "--in-thought",
        action="store_true",
        help="the model's chat template begins its thoughts in the prompt: a completion without </think> is no reply",
    )
    told = parser.parse_args(arguments)
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    try:
        with open_service(told.compute, told.target, cache=told.cache) as service:
            token = new_token(told.token_file)
            with RewardServer(
                service,
                host=told.host,
                port=told.port,
                token=token,
                in_thought=told.in_thought,
                remark=_complain,
            ) as server:
                host = own_address() if told.host in ("0.0.0.0", "::") else told.host
                print(server.address(host), flush=True)
                ended.wait()
    except StitchError as error:
        _complain(str(error))
        return error.exit_code
    return 0


def _complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
