"""SciPy: differential evolution and brute force whose populations a pool's map computes."""

from multiprocessing import Pool

import numpy as np
from scipy.optimize import brute, differential_evolution


def rastrigin(x):
    return float(10 * len(x) + np.sum(x**2 - 10 * np.cos(2 * np.pi * x)))


def bowl(x):
    return float((x[0] - 1) ** 2 + (x[1] + 2) ** 2)


def main():
    bounds = [(-5.12, 5.12)] * 3
    with Pool(2) as pool:
        found = differential_evolution(
            rastrigin,
            bounds,
            workers=pool.map,
            updating="deferred",
            rng=5,
            maxiter=20,
            polish=False,
        )
        print(found.nfev, found.nit, found.x.tolist(), found.fun)
        print(brute(bowl, [slice(-4, 4, 0.5)] * 2, workers=pool.map, finish=None).tolist())


if __name__ == "__main__":
    main()
