"""nevergrad: an optimiser whose losses an executor computes."""

import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor

import nevergrad

SPAWN = multiprocessing.get_context("spawn")


def distance(x, sharpness):
    return float(sum((x - 0.5) ** 2)) + abs(sharpness - 3.0)


def main():
    # of its own clock, which batches do not start
    warnings.filterwarnings("ignore", "Ignoring since timer")
    space = nevergrad.p.Instrumentation(
        nevergrad.p.Array(shape=(2,)), sharpness=nevergrad.p.Scalar(lower=0.0, upper=8.0)
    )
    space.random_state.seed(12)
    optimizer = nevergrad.optimizers.DE(parametrization=space, budget=60, num_workers=4)
    with ProcessPoolExecutor(2, mp_context=SPAWN) as executor:
        found = optimizer.minimize(distance, executor=executor, batch_mode=True)
    (x,), keywords = found.value
    print(optimizer.num_tell, x.tolist(), keywords)


if __name__ == "__main__":
    main()
