"""torch: processes that train one model in shared memory, and a data set with a shared cache."""

import multiprocessing

import torch
from torch.utils.data import DataLoader, Dataset

CONTEXT = "spawn"


class Cached(Dataset):
    def __init__(self, size):
        self.cache = torch.zeros(size).share_memory_()

    def __len__(self):
        return len(self.cache)

    def __getitem__(self, index):
        self.cache[index] = index
        return self.cache[index]


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        # its gradient is the same wherever the others are: -1 for each parameter
        sum(-parameter.sum() for parameter in model.parameters()).backward()
        optimizer.step()


def double(tensor):
    tensor *= 2
    return tensor.is_shared()


def main():
    context = multiprocessing.get_context(CONTEXT)
    for strategy in sorted(torch.multiprocessing.get_all_sharing_strategies()):
        torch.multiprocessing.set_sharing_strategy(strategy)
        model = torch.nn.Linear(3, 2)
        model.share_memory()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        # one after the other: those that add at once may lose each other's steps
        train(model, 2)
        process = context.Process(target=train, args=(model, 3))
        process.start()
        process.join()
        moved = [
            (p.detach() - b).mean().item() for p, b in zip(model.parameters(), before, strict=True)
        ]
        print(strategy, [round(one, 3) for one in moved])
        tensor = torch.ones(2).share_memory_()
        with context.Pool(1) as pool:
            print(pool.map(double, [tensor, tensor], chunksize=1), tensor.tolist())
    cached = Cached(6)
    loader = DataLoader(cached, 2, num_workers=2, multiprocessing_context=context)
    print([batch.tolist() for batch in loader], cached.cache.tolist())


if __name__ == "__main__":
    multiprocessing.freeze_support()
    main()
