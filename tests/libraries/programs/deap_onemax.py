"""DEAP: a genetic algorithm whose toolbox maps by a pool."""

import random
from multiprocessing import Pool

from deap import algorithms, base, creator, tools

creator.create("Closeness", base.Fitness, weights=(1.0,))
creator.create("Genome", list, fitness=creator.Closeness)

toolbox = base.Toolbox()
toolbox.register("bit", random.randint, 0, 1)
toolbox.register("individual", tools.initRepeat, creator.Genome, toolbox.bit, n=40)
toolbox.register("population", tools.initRepeat, list, toolbox.individual)


def ones(genome):
    return (sum(genome),)


toolbox.register("evaluate", ones)
toolbox.register("mate", tools.cxTwoPoint)
toolbox.register("mutate", tools.mutFlipBit, indpb=0.05)
toolbox.register("select", tools.selTournament, tournsize=3)


def main():
    random.seed(7)
    with Pool(2) as pool:
        toolbox.register("map", pool.map)
        population = toolbox.population(n=60)
        best = tools.HallOfFame(1)
        statistics = tools.Statistics(lambda genome: genome.fitness.values[0])
        statistics.register("max", max)
        _, log = algorithms.eaSimple(
            population, toolbox, 0.5, 0.2, 15, stats=statistics, halloffame=best, verbose=False
        )
    print(log)
    print(best[0], type(best[0]).__name__, best[0].fitness)


if __name__ == "__main__":
    main()
