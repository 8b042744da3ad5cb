"""A pool that maps a function over a list."""

from multiprocessing import Pool


def cube(number):
    return number**3


if __name__ == "__main__":
    with Pool(3) as pool:
        print(pool.map(cube, [4, 5, 6]))
