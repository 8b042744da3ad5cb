"""p_tqdm: maps with a bar, in the processes of pathos, whose functions may be lambdas."""

import io

from p_tqdm import p_imap, p_map, p_uimap


def add(one, other):
    return one + other


def main():
    factor, drawn = 3, io.StringIO()
    print(p_map(add, range(10), range(10), num_cpus=2, file=drawn))
    print(list(p_imap(lambda number: number * factor, range(6), num_cpus=2, file=drawn)))
    print(sorted(p_uimap(add, range(6), [1] * 6, num_cpus=2, file=drawn)))
    print("10/10" in drawn.getvalue(), "6/6" in drawn.getvalue())


if __name__ == "__main__":
    main()
