"""One thread per test process: many small problems gain nothing from more, and idle threads spin."""

import torch

torch.set_num_threads(1)
