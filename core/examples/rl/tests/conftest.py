"""torch's threads wait for one another by spinning: on a machine that others use too, more than one is slower by far."""

import torch

torch.set_num_threads(1)
