"""``curvi reproduce``: the paper's tables and figures, with its numbers beside ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from curvi._core.files import output_folder
from curvi.cli._terminal import say


@dataclass(frozen=True)
class ReproduceCommand:
    """Reproduce tables and figures of the paper, its numbers beside ours."""

    names: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME [NAME ...]")
    ]
    """table1, logistic, coefficients, cg_steps, plateau, lbfgs_draws, frey, olivetti, mnist,
    concentration, or all.
    The first three show the same runs, made once if they are named together."""
    seeds: int | None = None
    """Number of seeds per method, 5 or with --quick 2; medians and ranges are reported."""
    seed: int = 0
    """The first of these seeds."""
    out: Path = Path("reproduction")
    """Folder for figures (PNG), numbers (CSV) and tables (Markdown)."""
    overwrite: bool = False
    """Replace the files of an earlier run."""
    seconds: float | None = None
    """Seconds of every run of a stochastic method or an auto-encoder, instead of the usual ones."""
    checkpoint: bool = False
    """Keep what is done in a hidden file of the folder, from which the same command goes on."""
    steps: int | None = None
    """Steps of every stochastic run of a regression, however long they take."""
    quick: bool = False
    """Short runs that show that everything works, without a verdict: two minutes at most."""

    def run(self) -> int:
        """Run the experiments one after the other."""
        from curvi._core import validation
        from curvi._core.errors import InputError
        from curvi.cli._fit import check_seed
        from curvi.engine import checkpointed
        from curvi.paper import experiments

        if not self.names:
            raise InputError(f"name what to reproduce: {', '.join(experiments.REGISTRY)}, or all")
        for name in self.names:
            validation.one_of(name, (*experiments.REGISTRY, "all"), "name")
        first = check_seed(self.seed)
        count = (2 if self.quick else 5) if self.seeds is None else self.seeds
        seeds = range(first, first + validation.positive_integer(count, "--seeds"))
        everything = "all" in self.names
        names = list(experiments.REGISTRY) if everything else list(dict.fromkeys(self.names))
        earlier = [path for name in names for path in _files(self.out, name)]
        output_folder(self.out, earlier, overwrite=self.overwrite)
        for name in names:
            settings = {"experiment": name, "seeds": str(seeds), "quick": str(self.quick)}
            kept = self.out / f".{name}.checkpoint" if self.checkpoint else None
            with _progress() as report, checkpointed(kept, settings):
                written = experiments.run(
                    name,
                    self.out,
                    seeds=seeds,
                    quick=self.quick,
                    report=report,
                    seconds=None if everything and name not in experiments.TIMED else self.seconds,
                    steps=None if everything and name not in experiments.STEPPED else self.steps,
                )
            if kept is not None:
                kept.unlink()
            for path in written:
                if path.suffix == ".md":
                    say(path.read_text())
            say(f"written: {', '.join(str(path) for path in written)}")
        return 0


def _files(out: Path, name: str) -> list[Path]:
    """What an experiment left: files that begin with its name, and what is in its own folder."""
    found = [*out.glob(f"{name}*"), *(out / name).glob("*")]
    return sorted(path for path in found if not path.is_dir())


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Say what is being done, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda text: bar.update(task, description=text)
