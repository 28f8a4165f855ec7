"""Started by torchrun: trains a few epochs in all processes and writes records to the folder given."""

import sys

from caffnet_lab.experiments import cbf
from caffnet_lab.experiments.campaign import run_campaign
from caffnet_lab.experiments.config import load_campaign
from caffnet_lab.experiments.distributed import process_group

if __name__ == "__main__":
    cbf.TRAIN_STEPS, cbf.TEST_STEPS = 3, 3
    out = sys.argv[1]
    with process_group("cpu"):  # once: meeting again at the same address is a race
        for task, method in (("opt", "caffnet-ff"), ("cbf", "caffnet-ff"), ("pwc", "caffnet-tf")):
            run_campaign(load_campaign(task=task, protocol="ours", methods=[method], seeds=[1], epochs=3, out=out))
