"""pymoo: a population that is evaluated by a pool's starmap."""

from multiprocessing import Pool

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


def main():
    with Pool(2) as pool:
        problem = Valley(elementwise_runner=StarmapParallelization(pool.starmap))
        found = minimize(problem, NSGA2(pop_size=20), ("n_gen", 8), seed=4)
    print(found.F.shape, found.F.sum().item(), found.X[0].tolist())


if __name__ == "__main__":
    main()
