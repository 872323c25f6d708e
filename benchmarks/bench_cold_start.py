"""A 10-dimensional fit from a cold process, compilation included, and where its time goes."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict

TARGET_COLD, TARGET_WARM = 5.0, 0.2
RUNS = 3
STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}


def cpu_seconds() -> float:
    """User and system time of this process: what the load of other jobs does not change much."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def child(family_name: str) -> dict:
    """In a fresh process: import, three fits, and every event of the compiler."""
    start = time.perf_counter()
    import jax
    import jax.monitoring
    import jax.numpy as jnp
    import numpy as np

    imported_jax = time.perf_counter()
    import curvi

    family = getattr(curvi, family_name)()
    _ = curvi.fit, curvi.DataTarget
    imported = time.perf_counter()
    events = defaultdict(lambda: defaultdict(float))
    counts = defaultdict(int)

    def listen(event: str, seconds: float, **details: object) -> None:
        if event in STAGES:
            events[str(details.get("fun_name", "?"))][STAGES[event]] += seconds
            counts[STAGES[event]] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 10)).astype(np.float32)
    y = np.where(X @ rng.normal(size=10) + rng.logistic(size=200) > 0, 1.0, -1.0)
    signed = jnp.asarray(X * y[:, None], jnp.float32)

    def log_likelihood(z, rows):
        return jax.nn.log_sigmoid(rows @ z)

    def log_prior(z):
        return -0.5 * jnp.sum(z**2)

    def one_fit(data, seed, likelihood=log_likelihood):
        began = time.perf_counter()
        target = curvi.DataTarget(likelihood, data, log_prior, jnp.zeros(10, jnp.float32))
        result = curvi.fit(target, family=family, seed=seed, progress=False)
        return time.perf_counter() - began, result

    began_data, began_cpu = time.perf_counter(), cpu_seconds()
    first, result = one_fit(signed, 0)
    cpu_seconds_at_first = cpu_seconds()
    first_cpu = cpu_seconds_at_first - began_cpu
    stages = {name: dict(entry) for name, entry in events.items()}
    first_counts = dict(counts)
    other = jax.block_until_ready(signed[::-1])
    before_second = counts["compile"]
    second, _ = one_fit(other, 1)
    recompiled = counts["compile"] - before_second
    closure, _ = one_fit(signed, 0, lambda z, rows: jax.nn.log_sigmoid(rows @ z))
    return {
        "import_jax": imported_jax - start,
        "import_curvi": imported - imported_jax,
        "make_data": began_data - imported,
        "first_fit": first,
        "first_fit_cpu": first_cpu,
        "cold_total_cpu": cpu_seconds_at_first,
        "load_average": os.getloadavg()[0],
        "second_fit": second,
        "same_fit_with_a_new_closure": closure,
        "cold_total": imported - start + (began_data - imported) + first,
        "compilations_first": first_counts["compile"],
        "compilations_second": recompiled,
        "steps": result.steps,
        "converged": result.converged,
        "stages": stages,
    }


def run_child(family: str) -> dict:
    code = (
        "import json, sys; from benchmarks.bench_cold_start import child; "
        "print(json.dumps(child(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, family], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def summarise(runs: list[dict]) -> dict:
    numbers = [name for name, value in runs[0].items() if isinstance(value, int | float)]
    table = {name: statistics.median(float(run[name]) for run in runs) for name in numbers}
    functions = {name for run in runs for name in run["stages"]}
    table["by_function"] = {
        name: {
            stage: statistics.median(run["stages"].get(name, {}).get(stage, 0.0) for run in runs)
            for stage in STAGES.values()
        }
        for name in functions
    }
    # A trace contains the traces of the functions it calls: only lowering and compilation add up.
    for stage in ("lower", "compile"):
        table[f"{stage}_total"] = sum(entry[stage] for entry in table["by_function"].values())
    return table


def show(family: str, table: dict) -> None:
    print(
        f"  {family}: cold {table['cold_total']:.2f} s = jax {table['import_jax']:.2f} + curvi "
        f"{table['import_curvi']:.2f} + data {table['make_data']:.2f} + fit "
        f"{table['first_fit']:.2f}; second fit {table['second_fit']:.3f} s "
        f"({table['compilations_second']:.0f} compilations); same code, new closure: "
        f"{table['same_fit_with_a_new_closure']:.2f} s"
    )
    print(
        f"    processor time of the cold run {table['cold_total_cpu']:.2f} s, of the first fit "
        f"{table['first_fit_cpu']:.2f} s; load average of the machine {table['load_average']:.1f}"
    )
    print(
        f"    {table['compilations_first']:.0f} compilations: XLA {table['compile_total']:.2f} s, "
        f"lowering {table['lower_total']:.2f} s, the rest (tracing and running) "
        f"{table['first_fit'] - table['compile_total'] - table['lower_total']:.2f} s"
    )
    entries = sorted(table["by_function"].items(), key=lambda item: -sum(item[1].values()))
    for name, entry in entries[:7]:
        parts = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in entry.items())
        print(f"      {name:24s} {parts}")


def main() -> dict:
    families = ("MeanField", "FullRank")
    run_child("MeanField")  # warm the file cache
    rounds = [{family: run_child(family) for family in families} for _ in range(RUNS)]
    tables = {family: summarise([entry[family] for entry in rounds]) for family in families}
    met = {}
    for family, table in tables.items():
        show(family, table)
        met[f"{family}_cold"] = table["cold_total"] <= TARGET_COLD
        met[f"{family}_second"] = table["second_fit"] <= TARGET_WARM
    for name, ok in met.items():
        target = TARGET_COLD if name.endswith("cold") else TARGET_WARM
        print(f"  {name} <= {target} s: {'met' if ok else 'MISSED'}")
    return {
        "runs": RUNS,
        **tables,
        "met": met,
        "targets": {"cold": TARGET_COLD, "second": TARGET_WARM},
    }
