"""A subclass with a ``run`` of its own, which sends what it computed through a queue."""

from multiprocessing import Process, Queue


class Adder(Process):
    def __init__(self, numbers, answers):
        super().__init__(name=f"adder of {len(numbers)}")
        self.numbers = numbers
        self.answers = answers

    def run(self):
        self.answers.put((self.name, sum(self.numbers)))


if __name__ == "__main__":
    answers = Queue()
    adders = [Adder(list(range(size)), answers) for size in (10, 100, 1000)]
    for adder in adders:
        adder.start()
    for name, total in sorted(answers.get() for _ in adders):
        print(name, total)
    for adder in adders:
        adder.join()
    print([adder.exitcode for adder in adders])
