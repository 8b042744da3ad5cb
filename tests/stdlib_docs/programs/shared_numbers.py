"""Numbers in shared memory, which a child changes."""

from multiprocessing import Array, Process, Value


def change(number, numbers):
    number.value = 2.718
    for i in range(len(numbers)):
        numbers[i] *= -2


def count(counter, times):
    for _ in range(times):
        with counter.get_lock():
            counter.value += 1


if __name__ == "__main__":
    number, numbers = Value("d", 0.0), Array("i", range(8))
    process = Process(target=change, args=(number, numbers))
    process.start()
    process.join()
    print(number.value, numbers[:], numbers[2:5], len(numbers), list(numbers)[-1])

    counter = Value("L", 0)
    processes = [Process(target=count, args=(counter, 300)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(counter.value)
    try:
        numbers[8] = 1
    except IndexError:
        print("IndexError")
