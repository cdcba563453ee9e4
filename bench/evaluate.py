"""Policies against one another and against what hindsight finds: makes tables and pictures of
docs/evaluation.md.

`python -m bench.evaluate [--write]`, and `--short` for whether anything became worse.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from bench import evaluate_short
from bench.campaign import Cache, cores, default_cache
from bench.evaluate_cells import EXECUTORS
from bench.evaluate_field import DEFAULT
from bench.evaluate_pictures import draw
from bench.evaluate_progress import Runs
from bench.evaluate_queues import CONFIG, PAGE
from bench.evaluate_rows import rows
from bench.evaluate_run import Evaluation
from bench.evaluate_text import MARKS, page
from bench.evaluation_text import spliced
from bench.tick_cost import tick_cost
from controller.config_load import load as load_config

ANALYSES = PAGE.with_name("evaluation_analyses.yaml")
IMAGES = PAGE.with_name("images")


def analyses(path: Path = ANALYSES) -> dict[str, str]:
    """By the key of a row, why it does not hold; empty where nobody wrote any."""
    if not path.exists():
        return {}
    told = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if not isinstance(told, dict) or not all(isinstance(text, str) for text in told.values()):
        raise ValueError(f"{path}: should hold texts by the key of a row")
    return told


def evaluate(args: argparse.Namespace) -> None:
    """Play everything, print the tables, and put them into the page where that is asked."""
    cache = Cache(None if args.no_cache else default_cache())
    with Runs(cache, args.jobs) as runs:
        evaluation = Evaluation(
            runs, load_config(CONFIG, env={}), args.executor or EXECUTORS, args.scale
        )
        if args.pictures:
            draw(evaluation, args.images)
            return
        evaluation.run()
        with evaluation.part("tick"):
            tick = tick_cost(DEFAULT)
        told = page(evaluation, rows(evaluation.results, evaluation.offline, tick), analyses())
        if args.write:
            with evaluation.part("pictures"):
                draw(evaluation, args.images)
    print(told)
    spent = os.times()
    print(
        f"{runs.count} runs in {runs.lasted_s():.0f} s, {args.jobs} at once; CPU "
        f"{spent.user + spent.children_user:.0f} s",
        file=sys.stderr,
    )
    if args.write:
        PAGE.write_text(spliced(PAGE.read_text(encoding="utf-8"), told, MARKS), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """The whole evaluation, or its short form."""
    parser = argparse.ArgumentParser(prog="bench.evaluate", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put tables and pictures in the page")
    parser.add_argument("--pictures", action="store_true", help="draw the pictures, nothing else")
    parser.add_argument("--images", type=Path, default=IMAGES, help="into this folder")
    parser.add_argument("--executor", action="append", choices=EXECUTORS)
    parser.add_argument("--scale", type=float, default=1.0, help="cells last so many times longer")
    parser.add_argument("--jobs", type=int, default=cores())
    parser.add_argument("--no-cache", action="store_true", help="play everything again")
    parser.add_argument("--short", action="store_true", help="only: did anything become worse")
    parser.add_argument("--record", action="store_true", help="with --short: this is how it is now")
    args = parser.parse_args(arguments)
    if args.short or args.record:
        sys.exit(evaluate_short.run(jobs=args.jobs, record=args.record))
    evaluate(args)


if __name__ == "__main__":
    main()
