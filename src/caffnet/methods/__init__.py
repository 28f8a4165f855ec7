"""CAffNet and its rivals, all called in the same way: ``METHODS[name](backbone, constraint, **hyperparameters)``.

Each file has one method, written from its paper; none of the rivals uses the projection of the library.
"""

from caffnet.methods.acnet import ACnet
from caffnet.methods.base import Guarantee, Method, Output, Supports, UnsupportedError
from caffnet.methods.caffnet import CAffNetFF, CAffNetLite, CAffNetTF
from caffnet.methods.cdgm import CDGM
from caffnet.methods.dc3 import DC3
from caffnet.methods.frerix import Frerix
from caffnet.methods.fsnet import FSNet
from caffnet.methods.hardnet import HardNet
from caffnet.methods.ipopt import IPOPT
from caffnet.methods.kkt_hpinn import KKTHPINN
from caffnet.methods.orthogonal import Orthogonal
from caffnet.methods.penalty import Penalty
from caffnet.methods.police import POLICE, AffineOn
from caffnet.methods.posthoc import PostHoc
from caffnet.methods.rayen import RAYEN
from caffnet.methods.soft import Soft
from caffnet.methods.training import fit

#: Every method by its name.
METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Soft,
        POLICE,
        KKTHPINN,
        ACnet,
        DC3,
        FSNet,
        HardNet,
        Frerix,
        CDGM,
        RAYEN,
        PostHoc,
        Orthogonal,
        IPOPT,
        CAffNetFF,
        CAffNetTF,
        CAffNetLite,
    )
}

__all__ = [
    "CDGM",
    "DC3",
    "IPOPT",
    "KKTHPINN",
    "METHODS",
    "POLICE",
    "RAYEN",
    "ACnet",
    "AffineOn",
    "CAffNetFF",
    "CAffNetLite",
    "CAffNetTF",
    "FSNet",
    "Frerix",
    "Guarantee",
    "HardNet",
    "Method",
    "Orthogonal",
    "Output",
    "Penalty",
    "PostHoc",
    "Soft",
    "Supports",
    "UnsupportedError",
    "fit",
]
