"""llama.cpp's server, as the package xllamacpp brings it: a library that has no command of its own.

Runs in the engine's environment, where nothing of Headway is: `python -I llamacpp_server.py`.
"""

from __future__ import annotations

import argparse
import signal
from typing import Any


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="file in GGUF")
    parser.add_argument("--alias", default="SmolLM2-135M-Instruct", help="the model's name")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seats", type=int, required=True, help="requests at once")
    parser.add_argument("--context-tokens", type=int, required=True, help="of one request")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    # Imported here: only the engine's environment has it.
    import xllamacpp  # type: ignore[import-not-found]  # and mypy's has not

    params: Any = xllamacpp.CommonParams()
    params.model.path = args.model
    params.model_alias = {args.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = args.port
    params.n_parallel = args.seats
    params.n_ctx = args.seats * args.context_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.use_jinja = True
    params.endpoint_metrics = True
    # Each connection keeps a thread: who waits must not keep out who asks for the metrics.
    params.n_threads_http = 128
    # Otherwise it keeps gigabytes of what it computed for those who left.
    params.cache_ram_mib = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
