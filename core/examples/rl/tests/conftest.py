"""torch's threads wait for one another by spinning: where others are at work, too, more than one is slower by far."""

import torch

torch.set_num_threads(1)
