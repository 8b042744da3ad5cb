"""schwimmbad: the pool that samplers are given, with a callback for results."""

from schwimmbad import MultiPool


class Likelihood:
    def __init__(self, mean):
        self.mean = mean

    def __call__(self, value):
        return -0.5 * (value - self.mean) ** 2


def main():
    seen = []
    with MultiPool(processes=2) as pool:
        print(pool.size, pool.map(Likelihood(3.0), range(10))[-3:])
        print(pool.map(abs, range(-4, 4), callback=seen.append), sorted(seen))
        print(list(pool.imap(abs, range(-3, 3))))


if __name__ == "__main__":
    main()
