"""pymoo: populations that are evaluated by a pool's starmap and by an executor."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.problem import ElementwiseProblem
from pymoo.optimize import minimize
from pymoo.parallelization.starmap import StarmapParallelization


class Valley(ElementwiseProblem):
    def __init__(self, **options):
        super().__init__(n_var=3, n_obj=2, n_ieq_constr=1, xl=-2.0, xu=2.0, **options)

    def _evaluate(self, x, out, *args, **kwargs):
        out["F"] = [float((x**2).sum()), float(((x - 1) ** 2).sum())]
        out["G"] = float(x[0] - 1.5)


class ByExecutor:
    def __init__(self, executor):
        self.executor = executor

    def __call__(self, function, items):
        futures = [self.executor.submit(function, *item) for item in items]
        return [future.result() for future in futures]


def evolve(starmap):
    problem = Valley(elementwise_runner=StarmapParallelization(starmap))
    found = minimize(problem, NSGA2(pop_size=20), ("n_gen", 8), seed=4)
    print(found.F.shape, found.F.sum().item(), found.X[0].tolist())


def main():
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        evolve(pool.starmap)
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        evolve(ByExecutor(executor))


if __name__ == "__main__":
    main()
