"""How often a reader who follows one fit through the tree has to change folders."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.float64_only

# Goals: 60 and 20. Both fall when a step of a fit stands where the one before it does.
MOST_CHANGES, MOST_RETURNS = 104, 46
FOLLOWED = '''
import sys
from pathlib import Path
import curvi, numpyro
import numpyro.distributions as dist

ROOT = Path(curvi.__file__).parent
folders, known = [], set()

def entered(frame, event, argument):
    """Note the folder of a function of the package, when it is called for the first time."""
    code = frame.f_code
    if event != "call" or code in known or code.co_name.startswith("<"):
        return
    known.add(code)
    path = Path(code.co_filename)
    if path.is_relative_to(ROOT) and path.parent.name != "_core":
        folders.append(path.parent)

def eight_schools(effects, errors):
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    sd = numpyro.sample("sd", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        school = numpyro.sample("school_effect", dist.Normal(mean, sd))
        numpyro.sample("effect", dist.Normal(school, errors), obs=effects)

effects = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
errors = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]
import numpy as np
curvi.fit, curvi.from_numpyro  # whose rooms are imported before anything is counted
sys.setprofile(entered)
target = curvi.from_numpyro(eight_schools, np.array(effects), np.array(errors))
text = curvi.fit(target, progress=False).summary()
sys.setprofile(None)
assert text.startswith("converged")
path = [here for here, before in zip(folders, [None, *folders]) if here != before]
print(len(path) - 1, sum(here == before for here, before in zip(path[2:], path)))
'''


def test_a_fit_is_followed_through_few_folders():
    done = subprocess.run(
        [sys.executable, "-c", FOLLOWED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    changes, returns = map(int, done.stdout.split())
    assert changes <= MOST_CHANGES
    assert returns <= MOST_RETURNS
