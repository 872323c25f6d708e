"""References of the hierarchical models by long NUTS runs.

``python -m benchmarks.hierarchical_references sample NAME...`` adds independent chains in the form
that mixes best, and ``merge`` writes ``results/hierarchical_references.json``; ``missing`` does
both for what is not known yet. Parts are kept in the folder named by CURVI_BENCH_PARTS, so that a
run can be cut short and continued.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.clocks import effective
from benchmarks.common import RESULTS
from benchmarks.hierarchical import MODELS, Entry
from curvi._core.files import write_atomically

REFERENCES = RESULTS / "hierarchical_references.json"
CHAINS, WARMUP, BATCH = 8, 1000, 500
ENOUGH = 2800  # effective draws of every quantity; 2,500 give an error of 0.02 sd
SECONDS = float(os.environ.get("CURVI_BENCH_SECONDS", "200"))  # processor time of one part
ACCURATE, MOST_PARTS = 0.02, 8
Draws = dict[str, np.ndarray]


def parts_folder() -> Path:
    """Where parts of a reference wait to be merged."""
    named = os.environ.get("CURVI_BENCH_PARTS")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / "curvi_bench_parts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def quantities(entry: Entry) -> tuple[list[str], dict[str, Any]]:
    """Names of what is compared (latent and deterministic sites), and the transforms of supports.

    A site whose support is the reals has no transform here.
    """
    import numpyro
    import numpyro.distributions as dist

    model, args, kwargs = entry.build()
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    names, transforms = [], {}
    for name, site in numpyro.handlers.trace(seeded).get_trace(*args, **kwargs).items():
        if site["type"] == "deterministic":
            names.append(name)
        elif site["type"] == "sample" and not site["is_observed"]:
            names.append(name)
            support = site["fn"].support
            if not _is_real(support):
                transforms[name] = dist.biject_to(support)
    return names, transforms


def _is_real(support: Any) -> bool:
    from numpyro.distributions import constraints

    while isinstance(support, type(constraints.real_vector)) and hasattr(
        support, "base_constraint"
    ):
        support = support.base_constraint
    return support is constraints.real


def both_scales(draws: Draws, names: list[str], transforms: dict[str, Any]) -> Draws:
    """All quantities: constrained as ``name``, unconstrained as ``~name`` where that differs."""
    found = {name: np.asarray(draws[name], float) for name in names}
    for name, transform in transforms.items():
        found[f"~{name}"] = np.asarray(transform.inv(jnp.asarray(draws[name])), float)
    return found


def _easiest(entry: Entry) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import numpyro
    from numpyro.infer.reparam import LocScaleReparam

    model, args, kwargs = (entry.easier or entry.build)()
    if entry.standardised:
        config = {name: LocScaleReparam(0) for name in entry.standardised}
        model = numpyro.handlers.reparam(model, config=config)
    return model, args, kwargs


def fingerprint(entry: Entry) -> float:
    """The log density at a fixed position: a reference belongs to one model and one set of data."""
    from numpyro import handlers
    from numpyro.infer.util import initialize_model

    model, args, kwargs = entry.build()
    info = initialize_model(
        jax.random.key(0), handlers.seed(model, jax.random.key(0)), model_args=args,
        model_kwargs=kwargs, validate_grad=False,
    )  # fmt: skip
    place = {
        name: 0.1 * jnp.sin(1.0 + jnp.arange(np.size(leaf), dtype=float)).reshape(np.shape(leaf))
        for name, leaf in info.param_info.z.items()
    }
    return -float(jax.jit(info.potential_fn)(place))


def sample_part(name: str) -> dict[str, Any]:
    """Independent chains until every quantity has ENOUGH effective draws or SECONDS are spent."""
    from numpyro.infer import MCMC, NUTS

    entry = MODELS[name]
    names, transforms = quantities(entry)
    model, args, kwargs = _easiest(entry)
    seed = len(list(parts_folder().glob(f"{name}-*.json")))
    began = time.process_time()
    run = MCMC(
        NUTS(model, target_accept_prob=entry.target_accept), num_warmup=WARMUP, num_samples=BATCH,
        num_chains=CHAINS, chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    run.warmup(jax.random.key(1000 + seed), *args, **kwargs)
    batches: list[Draws] = []
    diverging = 0
    while True:
        run.run(run.last_state.rng_key, *args, extra_fields=("diverging",), **kwargs)
        run.post_warmup_state = run.last_state
        draws = both_scales(run.get_samples(group_by_chain=True), names, transforms)
        batches.append(draws)
        diverging += int(run.get_extra_fields()["diverging"].sum())
        joined = {k: np.concatenate([one[k] for one in batches], axis=1) for k in draws}
        sizes = {k: effective(v) for k, v in joined.items()}
        least = min(v.min() for k, v in sizes.items() if k not in entry.heavy)
        spent = time.process_time() - began
        print(f"  {name}: {least:.0f} effective, {diverging} diverging, {spent:.0f} s", flush=True)
        if spent > SECONDS or least >= ENOUGH:
            break
    return as_part(joined, sizes, diverging, spent)


def as_part(draws: Draws, sizes: Draws, diverging: int, seconds: float) -> dict[str, Any]:
    """What is kept of chains: moments of each and effective draws of all."""
    moments = {
        k: {"mean": v.mean(axis=1), "variance": v.var(axis=1, ddof=1), "ess": sizes[k]}
        for k, v in draws.items()
    }
    return {
        "draws": next(iter(draws.values())).shape[1], "diverging": diverging, "seconds": seconds,
        "moments": {k: {n: a.tolist() for n, a in m.items()} for k, m in moments.items()},
    }  # fmt: skip


def add_part(name: str, part: dict[str, Any]) -> None:
    """Keep one more part of a reference."""
    count = len(list(parts_folder().glob(f"{name}-*.json")))
    write_atomically(parts_folder() / f"{name}-{count}.json", json.dumps(part))


def merged(parts: list[dict[str, Any]], entry: Entry) -> dict[str, Any]:
    """Pooled means, sds and errors of all chains, and how well the chains agree."""
    sites, worst_rhat, least = {}, 1.0, np.inf
    names, transforms = quantities(entry)
    for key in [*names, *(f"~{name}" for name in transforms)]:
        if key in entry.heavy:
            continue
        rows = [part["moments"][key] for part in parts]
        means, variances = (np.concatenate([r[n] for r in rows]) for n in ("mean", "variance"))
        counts = np.concatenate([np.full(len(r["mean"]), p["draws"])
                                 for r, p in zip(rows, parts, strict=True)])  # fmt: skip
        weights = (counts / counts.sum()).reshape(-1, *[1] * (means.ndim - 1))
        mean = (weights * means).sum(axis=0)
        within, between = (weights * variances).sum(axis=0), means.var(axis=0, ddof=1)
        sd = np.sqrt(within + (weights * (means - mean) ** 2).sum(axis=0))
        free = sd > 1e-9 * (1 + np.abs(mean))  # a factor of a correlation holds constants
        size = np.sum([r["ess"] for r in rows], axis=0)
        rhat = np.sqrt(1 + between / np.where(free, within, 1.0))
        worst_rhat = max(worst_rhat, float(np.max(np.where(free, rhat, 1.0))))
        least = min(least, float(np.min(np.where(free, size, np.inf))))
        sites[key] = {
            "mean": _short(mean), "sd": _short(np.where(free, sd, 0.0)),
            "error": _short(np.where(free, 1 / np.sqrt(size), 0.0), 3),
        }  # fmt: skip
    return {
        "dimension": entry.dimension,
        "sites": sites, "rhat": round(worst_rhat, 5), "ess": round(least),
        "error": round(float(1 / np.sqrt(least)), 4),
        "parts": len(parts),
        "draws": sum(len(p["moments"][names[0]]["mean"]) * p["draws"] for p in parts),
        "diverging": sum(p["diverging"] for p in parts),
        "seconds": round(sum(p["seconds"] for p in parts), 1),
    }  # fmt: skip


def _short(values: np.ndarray, digits: int = 7) -> Any:
    return np.vectorize(lambda x: float(f"{x:.{digits}g}"))(values).tolist()


def merge(names: list[str] | None = None) -> dict[str, Any]:
    """Everything that is known: old references, replaced where there are new parts."""
    known = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    for name in names or MODELS:
        entry = MODELS[name]
        files = sorted(parts_folder().glob(f"{entry.same_as or name}-*.json"))
        row = known.get(name, {})
        stamp = zlib.crc32(b"".join(file.read_bytes() for file in files))
        if files and row.get("stamp") != stamp:
            every = [json.loads(file.read_text()) for file in files]
            parts = [part for part in every if part["diverging"] == 0] or every
            row = merged(parts, entry)
            row |= {"fingerprint": fingerprint(entry), "stamp": stamp}
        if row:
            known[name] = row
    write_atomically(REFERENCES, json.dumps(known, indent=None, separators=(",", ":"))
                     .replace('},"', '},\n"') + "\n")  # fmt: skip
    for name in names or known:
        row = known.get(name, {})
        error, rhat = (row.get(key, float("nan")) for key in ("error", "rhat"))
        print(f"  {name:28s} error {error:.4f}, R-hat {rhat:.4f}, {row.get('diverging')} diverging")
    return known


def complete(name: str) -> None:
    """Sample until a reference is known well enough, where it is missing."""
    for _ in range(MOST_PARTS):
        row = merge([name]).get(name, {})
        if row.get("error", 1.0) <= ACCURATE and row["diverging"] == 0:
            break
        add_part(MODELS[name].same_as or name, sample_part(MODELS[name].same_as or name))


def main(action: str, names: list[str]) -> int:
    """One part for each of the named models (all without names); 2 for what is unknown."""
    unknown = [name for name in names if name not in MODELS]
    if unknown or action not in ("sample", "merge", "missing"):
        print(
            f"usage: sample|merge|missing [NAME...]; unknown: {action} {unknown}",
            file=sys.stderr,
        )
        return 2
    jax.config.update("jax_enable_x64", True)
    if action == "merge":
        merge()
        return 0
    for name in names or MODELS:
        if action == "missing":
            complete(name)
        else:
            add_part(name, sample_part(name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:]))
