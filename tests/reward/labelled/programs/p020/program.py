from bindings import bag_rows
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, count, width):
        super().__init__()
        self.table = nn.Embedding(count, width)

    def forward(self, index):
        bags, size = index.shape
        y = self.table.weight.new_empty(bags, self.table.embedding_dim)
        bag_rows(index, self.table.weight.detach(), y, bags, size, y.shape[1])
        return y
