"""One process with an argument."""

from multiprocessing import Process


def greet(whom):
    print("good morning,", whom)


if __name__ == "__main__":
    process = Process(target=greet, args=("Ada",))
    process.start()
    process.join()
    print("exit code", process.exitcode)
