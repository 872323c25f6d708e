"""Mixed models against NUTS on the same priors, lme4, glmmTMB and statsmodels; a large table.

Processor seconds of this process, of first and later calls, with what compiles in them. NUTS: one
chain at NumPyro's defaults, until the worst quantity has 400 effective draws.
"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from benchmarks.clocks import nuts, pin_to_one_core, spent
from benchmarks.common import NEEDS_DATA, RESULTS, data_folder, verdict
from benchmarks.mixed_models import CASES, numpyro_model, quantities

WORST_ERROR, RATIOS = 0.1, (0.85, 1.15)
REML = {"Intercept": 251.4, "Days": 10.47, "sd Intercept|Subject": 24.7, "sd Days|Subject": 5.9}
ROWS, FIRST, SECOND = 1_000_000, 50_000, 5_000
GIBIBYTE = 2**30


def estimates(model) -> dict[str, tuple[float, float]]:
    """Mean and sd of every quantity, by the names of the references."""
    words = {"fixed effect": "", "group sd": "sd ", "correlation": "correlation "}
    out = {}
    for row in model.summary_table().to_dict("records"):
        name = words[row["kind"]] + row["name"] if row["kind"] in words else row["kind"]
        out[name] = (row["mean"], row["sd"])
    for factor, table in model.group_effects_.items():
        for effect in [column for column in table.columns if not column.endswith(" sd")]:
            values = zip(table.index, table[effect], table[f"{effect} sd"], strict=True)
            out.update({f"{effect}|{factor}[{label}]": (m, s) for label, m, s in values})
    return out


def compare(found: dict[str, tuple[float, float]], reference: dict) -> dict:
    """Worst error of a mean in sds of the reference, and the range of ratios of sds."""
    names = [name for name in reference["mean"] if name in found]
    mean, sd = reference["mean"], reference["sd"]
    errors = {name: abs(found[name][0] - mean[name]) / sd[name] for name in names}
    ratios = {name: found[name][1] / sd[name] for name in names}
    worst = max(errors, key=errors.get)
    return {
        "quantities": len(names),
        "worst_error_sds": errors[worst],
        "worst_error_of": worst,
        "least_sd_ratio": min(ratios.values()),
        "largest_sd_ratio": max(ratios.values()),
    }


def fit_seconds(case, repeats: int = 5) -> tuple[object, dict]:
    """A fitted model; processor seconds of a first call, and the median of later ones."""
    table, calls = case.table(), []
    for _ in range(1 + repeats):
        with spent() as clock:
            model = case.model().fit(table)
        calls.append(clock)
    return model, {
        "seconds_first": calls[0].seconds,
        "compiling_first": calls[0].compiling,
        "seconds": statistics.median(call.seconds for call in calls[1:]),
        "compiling": statistics.median(call.compiling for call in calls[1:]),
    }


def nuts_seconds(case) -> dict:
    """Two runs of NUTS on the same model, each with a key of its own."""
    import jax
    from numpyro.infer import NUTS

    with jax.enable_x64(True):
        design, layout = case.model().design(case.table())
        model = numpyro_model(design, layout, case.likelihood)

        def values(draws: dict[str, np.ndarray]) -> np.ndarray:
            return np.stack(list(quantities(design, layout, draws).values()), axis=-1)

        runs = [
            nuts(lambda: NUTS(model, dense_mass=[("beta",)]), values, seed=seed, num_chains=1)
            for seed in (0, 1)
        ]
    return {
        "seconds": [run.seconds for run in runs],
        "compiling": [run.compiling for run in runs],
        "ess": [run.ess for run in runs],
        "draws": [run.values.shape[1] for run in runs],
        "running": statistics.mean(run.running for run in runs),
    }


def statsmodels_vb(case, reference: dict) -> dict:
    """statsmodels' variational fit: seconds, and the worst error of what it estimates."""
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM, PoissonBayesMixedGLM

    table = case.table()
    design, _ = case.model().design(table)
    kind = PoissonBayesMixedGLM if case.likelihood == "poisson" else BinomialBayesMixedGLM
    columns, owners = [], []
    for index, factor in enumerate(design.factors):
        columns.append(np.equal.outer(factor.codes, np.arange(factor.levels)).astype(float))
        owners += [index] * factor.levels
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind(design.y, design.X, np.concatenate(columns, axis=1), np.array(owners))
        result = model.fit_vb()
    seconds = time.process_time() - started
    found = {
        name: (float(m), float(s))
        for name, m, s in zip(design.names, result.fe_mean, result.fe_sd, strict=True)
    }
    at = 0
    for factor in design.factors:
        for label in factor.labels:
            name = f"Intercept|{factor.name}[{label}]"
            found[name] = (float(result.vc_mean[at]), float(result.vc_sd[at]))
            at += 1
    return {"seconds": seconds, **compare(found, reference)}


def in_r(case, library: str) -> dict | None:
    """The point estimate of an R package on the same table and formula; None without R or it.

    Its likelihood is maximised (that of residuals for Gaussian responses in lme4) and has no
    priors, so that seconds are what is compared.
    """
    if shutil.which("Rscript") is None:
        return None
    table = case.table()
    groups = [factor.name for factor in case.model().design(table)[0].factors]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        table.to_csv(path, index=False)
        script = Path(__file__).with_name("mixed_peers.R")
        given = [str(path), case.formula, case.likelihood, library, ",".join(groups)]
        command = ["Rscript", str(script), *given]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        print(f"{library} did not run: {run.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    lines = [line.split() for line in run.stdout.splitlines()]
    seconds = [float(line[1]) for line in lines if line[0] == "seconds"]
    (version,) = [line[1] for line in lines if line[0] == "version"]
    return {
        "version": version, "seconds_first": seconds[0],
        "seconds": statistics.median(seconds[1:]),
        "fixed": {line[1]: [float(line[2]), float(line[3])] for line in lines
                  if line[0] == "fixed"},
    }  # fmt: skip


def crossed() -> dict:
    """One fit of the large crossed table, in this process."""
    import pandas as pd

    from curvi.mixed import MixedModel

    rng = np.random.default_rng(0)
    g, h = rng.integers(0, FIRST, ROWS), rng.integers(0, SECOND, ROWS)
    x = rng.standard_normal(ROWS)
    y = 0.5 + 0.3 * x + 0.8 * rng.standard_normal(FIRST)[g] + rng.standard_normal(ROWS)
    y = y + 0.5 * rng.standard_normal(SECOND)[h]
    table = pd.DataFrame({"y": y, "x": x, "g": g, "h": h})
    wall, cpu = time.perf_counter(), time.process_time()
    model = MixedModel("y ~ x + (1 | g) + (1 | h)").fit(table)
    truth = {"x": 0.3, "sd Intercept|g": 0.8, "sd Intercept|h": 0.5, "residual sd": 1.0}
    found = estimates(model)
    return {
        "wall_seconds": time.perf_counter() - wall,
        "processor_seconds": time.process_time() - cpu,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "converged": model.converged_,
        "errors_sds": {n: abs(found[n][0] - v) / found[n][1] for n, v in truth.items()},
    }


def main() -> dict:
    """Everything; the large table in a process of its own."""
    if data_folder() is None:
        raise SystemExit(NEEDS_DATA)
    pin_to_one_core()
    references = json.loads((RESULTS / "mixed_references.json").read_text())
    rows = {}
    for name, case in CASES.items():
        model, clock = fit_seconds(case)
        row = compare(estimates(model), references[name])
        low, high = RATIOS
        row["accurate"] = bool(
            row["worst_error_sds"] <= WORST_ERROR
            and low <= row["least_sd_ratio"]
            and row["largest_sd_ratio"] <= high
        )
        row["verdict_right"] = bool(model.converged_ == row["accurate"])
        row |= clock | {"relative_ess": model.relative_ess_}
        row["nuts"] = nuts_seconds(case)
        row["times_faster"] = row["nuts"]["running"] / row["seconds"]
        row["times_faster_first"] = row["nuts"]["seconds"][0] / row["seconds_first"]
        row["wanted"] = case.target
        if case.likelihood != "gaussian":
            row["statsmodels"] = statsmodels_vb(case, references[name])
        row |= {library: in_r(case, library) for library in ("lme4", "glmmTMB")}
        rows[name] = row
        print(
            f"{name:<11} error {row['worst_error_sds']:.3f} sds, sd ratios "
            f"{row['least_sd_ratio']:.2f} to {row['largest_sd_ratio']:.2f}, "
            f"{row['seconds_first']:.2f} then {row['seconds']:.2f} s, "
            f"{row['times_faster']:.0f} times faster than NUTS without its compilation "
            f"({verdict(row['accurate'] and row['times_faster'] >= case.target)})",
            flush=True,
        )
    sleep = estimates(CASES["sleepstudy"].model().fit(CASES["sleepstudy"].table()))
    near = {name: [sleep[name][0], sleep[name][1], value] for name, value in REML.items()}
    command = [sys.executable, "-c", "import json; from benchmarks.bench_mixed import crossed; "
               "print(json.dumps(crossed()))"]  # fmt: skip
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    large = json.loads(text.splitlines()[-1])
    large["met"] = bool(large["wall_seconds"] <= 120 and large["peak_bytes"] <= 4 * GIBIBYTE)
    print(f"crossed     {large['wall_seconds']:.0f} s, {large['peak_bytes'] / GIBIBYTE:.2f} GiB")
    return {"models": rows, "sleepstudy_and_reml": near, "crossed": large}


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
