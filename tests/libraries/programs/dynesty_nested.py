"""dynesty: nested sampling that proposes points by a pool."""

from multiprocessing import Pool

import dynesty
import numpy as np


def log_likelihood(x):
    return -0.5 * float(np.sum(x**2)) * 16


def prior(unit):
    return 4 * unit - 2


def main():
    with Pool(2) as pool:
        sampler = dynesty.NestedSampler(
            log_likelihood,
            prior,
            2,
            nlive=60,
            pool=pool,
            queue_size=2,
            rstate=np.random.default_rng(3),
        )
        sampler.run_nested(dlogz=1.0, print_progress=False)
    results = sampler.results
    print(results.niter, float(results.logz[-1]), results.samples[-1].tolist())


if __name__ == "__main__":
    main()
