import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
