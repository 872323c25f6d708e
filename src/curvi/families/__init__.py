"""q(z): mean field, full rank, low rank + diagonal, chain, Student t, any location-scale base."""

from curvi.families._arrow import Arrow
from curvi.families._bases import Base, Laplace, Logistic, MultivariateTBase, Normal, StudentTBase
from curvi.families._chain import BlockBidiagonal, Chain
from curvi.families._conditional import Conditional, Warped
from curvi.families._family import (
    Family,
    FullRank,
    LocationScale,
    LowRank,
    MeanField,
    Params,
    StudentT,
)
from curvi.families._host import HostMap as HostMap
from curvi.families._host import has_host_map as has_host_map
from curvi.families._host import host_map as host_map
from curvi.families._inverse_root import InverseRoot
from curvi.families._scales import Diagonal, DiagonalPlusLowRank, LowerTriangular, Scale
from curvi.families._sparse_host import SparseMap as SparseMap
from curvi.families._sparse_precision import SparsePrecision
from curvi.families._warp import Moved as Moved

__all__ = [
    "Arrow", "Base", "BlockBidiagonal", "Chain", "Conditional", "Diagonal", "DiagonalPlusLowRank",
    "Family", "FullRank", "InverseRoot", "Laplace", "LocationScale", "Logistic", "LowRank",
    "LowerTriangular", "MeanField", "MultivariateTBase", "Normal", "Params", "Scale",
    "SparsePrecision", "StudentT", "StudentTBase", "Warped",
]  # fmt: skip
