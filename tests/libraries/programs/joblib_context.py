"""joblib: its backend of processes, with a context of the program's, and arrays that it maps."""

import joblib
import numpy as np
from joblib import delayed

CONTEXT = "multiprocessing"


def element(array, index):
    # of what joblib has written to a file
    return float(array[index]), type(array).__name__


def main():
    parallel = joblib.Parallel(n_jobs=2, backend=CONTEXT)
    print(parallel(delayed(pow)(number, 2) for number in range(50))[-3:])
    large = np.arange(200_000.0)
    print(parallel(delayed(element)(large, index) for index in range(5)))
    try:
        parallel(delayed(int)(letter) for letter in "12x")
    except ValueError as error:
        print("ValueError:", str(error).splitlines()[-1])


if __name__ == "__main__":
    main()
