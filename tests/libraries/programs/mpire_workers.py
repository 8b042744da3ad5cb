"""mpire: workers with a state of their own and a shared object, that start once and go on."""

from mpire import WorkerPool


def set_up(shared, state):
    state["seen"] = 0


def count(shared, state, number):
    state["seen"] += 1
    return shared["factor"] * number


def wrap_up(shared, state):
    return state["seen"]


def divide(shared, number):
    return shared["factor"] / number


def main():
    with WorkerPool(
        n_jobs=2, shared_objects={"factor": 3}, use_worker_state=True, start_method="spawn"
    ) as pool:
        print(pool.map(count, range(20), worker_init=set_up, worker_exit=wrap_up)[-3:])
        print(sum(pool.get_exit_results()))
    with WorkerPool(n_jobs=2, shared_objects={"factor": 6}, start_method="spawn") as pool:
        print(sorted(pool.imap_unordered(divide, [1, 2, 3])))
        try:
            pool.map(divide, [1, 0])
        except ZeroDivisionError as error:
            print("ZeroDivisionError:", str(error).splitlines()[-1][:20])


if __name__ == "__main__":
    main()
