"""A pipe into a job that only a stream reaches, beside the same one where the job dials the program."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.model import FLOOR, OURS, Bar, Metric, Round, Sizes
from benchmarks.round_trips import over_pipe, round_of

CONTENDERS = (OURS, FLOOR)
METRICS = (
    Metric(
        "tunnel",
        "Pipe through a tunnel, small, there and back",
        "µs",
        bars=(Bar(2.5, FLOOR),),
    ),
    Metric(
        "tunnel-bytes",
        "Pipe through a tunnel, 4 MB there and back",
        "MB/s",
        bars=(Bar(0.5, FLOOR),),
        more=True,
    ),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    with tempfile.TemporaryDirectory(prefix="fiber-bench-") as folder:
        _use_remote_backend(Path(folder), streams=contender == OURS)
        import fiber

        with over_pipe(fiber) as exchange:
            yield round_of(exchange, "tunnel", sizes.messages // 10, sizes.messages // 500)


def _use_remote_backend(folder: Path, *, streams: bool) -> None:
    """Have this program, which has no runtime yet, run its jobs as a cluster would."""
    site, home = folder / "site", folder / "home"
    home.mkdir()
    distribution = site / "far-1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: far\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text("[fiber]\nfar = fiber.testing.fake_remote\n")
    sys.path.append(str(site))
    os.environ.update(
        FIBER_BACKEND="far",
        FIBER_FAR_FOLDER=str(home),
        FIBER_FAR_PATH=str(site),
        FIBER_FAR_STREAMS="1" if streams else "",
    )
