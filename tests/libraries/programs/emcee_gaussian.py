"""emcee: an ensemble of walkers whose likelihoods a pool computes."""

from multiprocessing import Pool

import emcee
import numpy as np

SCALES = np.array([0.5, 2.0, 8.0])


def log_probability(position):
    return -0.5 * float(np.sum((position / SCALES) ** 2))


def main():
    np.random.seed(11)  # noqa: NPY002 - what emcee draws from
    start = np.random.default_rng(2).normal(size=(16, 3))
    with Pool(2) as pool:
        sampler = emcee.EnsembleSampler(16, 3, log_probability, pool=pool)
        sampler.run_mcmc(start, 120)
    chain = sampler.get_chain(discard=20, flat=True)
    print(chain.shape, chain.std(axis=0).tolist())
    print(sampler.acceptance_fraction.tolist())


if __name__ == "__main__":
    main()
