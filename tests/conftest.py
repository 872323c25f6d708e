"""The strict settings that every test runs under, and the fixtures they share.

CURVI_TEST_DTYPE      float64 (default) or float32: the precision of this pass
CURVI_TEST_SEED       replay a failure: the report header prints the seed of a run
CURVI_TEST_SEEDED=1   run only the tests that draw from the seed
CURVI_TEST_WHOLE=1    the float32 pass runs every test, not only those that ask for the precision
CURVI_TEST_EXAMPLES   examples of a property whose examples are compiled: 2 in float64, 1 in
                      float32, 20 in the slow run
CURVI_FUZZ_INPUTS     damaged files that the slow suite puts through the parsers: a million
CURVI_DATA            the folder of data sets; without it, tests that read data are skipped
CURVI_REQUIRE_DATA=1  a missing data set fails instead
CURVI_TEST_CACHE      a folder in which compiled code is kept between runs, with one folder for
                      each worker, because JAX does not lock it; a first run gains nothing
CURVI_TEST_TYPES      1 checks shapes and types of every call at run time, 0 does not; by default
                      the float32 pass checks and the float64 pass does not, because the
                      checker would reject wrong types before the library's own validation can
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import types
import zlib
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")
# Tests compile thousands of tiny functions and run each a few times.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# The simpler emitter of loops compiles in half the time; the slow suite compiles as users do.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
# Set before pytest-xdist starts its workers, which inherit it: one seed for the whole run.
os.environ.setdefault("CURVI_TEST_SEED", str(secrets.randbelow(2**31)))

import beartype
import hypothesis
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import install_import_hook

# A shell that starts a job in the background lets it ignore Ctrl-C, which tests raise on purpose.
signal.signal(signal.SIGINT, signal.default_int_handler)

DTYPE = os.environ.get("CURVI_TEST_DTYPE", "float64")
SEED = int(os.environ["CURVI_TEST_SEED"])
EXAMPLES = int(os.environ.get("CURVI_TEST_EXAMPLES", "2" if DTYPE == "float64" else "1"))

if DTYPE not in ("float32", "float64"):
    raise pytest.UsageError(f"CURVI_TEST_DTYPE is {DTYPE!r}; use float32 or float64")

# Only tests may set the global configuration of JAX; the library never does.
jax.config.update("jax_enable_x64", DTYPE == "float64")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

if cache := os.environ.get("CURVI_TEST_CACHE"):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    jax.config.update("jax_compilation_cache_dir", str(Path(cache) / worker))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

if os.environ.get("CURVI_TEST_TYPES", "10"[DTYPE == "float64"]) == "1":
    if "curvi" in sys.modules:
        raise pytest.UsageError("curvi was imported before the type-checking hook was installed")
    # For beartype an int is a float too, as PEP 484 has it; jaxtyping takes the checker by name.
    checker = types.ModuleType("curvi_annotation_checker")
    checker.checked = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
    sys.modules[checker.__name__] = checker
    install_import_hook("curvi", f"{checker.__name__}.checked")

hypothesis.settings.register_profile(
    "curvi",
    deadline=None,  # the first call of a jitted function compiles
    derandomize=False,
    max_examples=EXAMPLES,  # most examples compile anew; tests that do not, ask for more
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("curvi")


def pytest_report_header() -> str:
    return f"curvi: CURVI_TEST_DTYPE={DTYPE} CURVI_TEST_SEED={SEED}"


# By CPU time. They go first, so that no worker is left alone with one of them at the end.
LONGEST = (
    "test_documentation.py", "solvers/test_kfac.py", "vae/test_estimator.py",
    "glm/test_contract.py", "glm/test_bounds.py", "linalg/test_cg.py", "solvers/test_contract.py",
    "paper/reference/test_gaussian.py", "paper/reference/test_parameters.py",
    "glm/test_posterior.py", "paper/reference/test_location_scale.py", "families/test_families.py",
    "interop/test_numpyro.py", "glm/test_reference.py",
)  # fmt: skip


def _rank(item: pytest.Item) -> int:
    name = item.path.relative_to(Path(__file__).parent).as_posix()
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def _draws_from_the_seed(item: pytest.Item) -> bool:
    return (
        "key" in getattr(item, "fixturenames", ())
        or hypothesis.is_hypothesis_test(getattr(item, "obj", None))
        or hasattr(getattr(item, "module", None), "SEED")
    )


def _asks_for_the_precision(item: pytest.Item) -> bool:
    return "dtype" in getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_rank)  # stable: the order within a file stays
    if os.environ.get("CURVI_TEST_SEEDED") == "1":
        config.hook.pytest_deselected(items=[i for i in items if not _draws_from_the_seed(i)])
        items[:] = [item for item in items if _draws_from_the_seed(item)]
    if DTYPE == "float64":
        return
    if os.environ.get("CURVI_TEST_WHOLE") != "1":
        config.hook.pytest_deselected(items=[i for i in items if not _asks_for_the_precision(i)])
        items[:] = [item for item in items if _asks_for_the_precision(item)]
    skip = pytest.mark.skip(reason="marked float64_only, and this is the float32 pass")
    for item in items:
        if item.get_closest_marker("float64_only"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def dtype():
    """The floating dtype of this pass."""
    return jnp.dtype(DTYPE)


@pytest.fixture
def key(request):
    """A PRNG key of this test alone; any seed must pass."""
    return jax.random.fold_in(jax.random.key(SEED), zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of data sets."""
    named = os.environ.get("CURVI_DATA", "")
    if named and Path(named).is_dir():
        return Path(named)
    problem = (
        f"CURVI_DATA is {named!r}, which is not a folder" if named else "CURVI_DATA is not set"
    )
    message = f"{problem}; set it to the folder of data sets to run this test"
    if os.environ.get("CURVI_REQUIRE_DATA") == "1":
        pytest.fail(message)
    pytest.skip(message)
