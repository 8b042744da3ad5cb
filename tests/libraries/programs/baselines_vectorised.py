"""Environments as OpenAI's Baselines runs them: a process and a pipe each, makers by cloudpickle."""

from multiprocessing import Pipe, Process

import cloudpickle
import numpy as np


class CloudpickleWrapper:
    """Carries what only cloudpickle can pickle."""

    def __init__(self, carried):
        self.carried = carried

    def __getstate__(self):
        return cloudpickle.dumps(self.carried)

    def __setstate__(self, state):
        self.carried = cloudpickle.loads(state)


class Walk:
    """A walk on a line; an episode ends at its edges."""

    def __init__(self, seed, edge):
        self.random = np.random.default_rng(seed)
        self.edge = edge
        self.position = 0.0

    def reset(self):
        self.position = 0.0
        return np.array([self.position])

    def step(self, action):
        self.position += action + self.random.normal(scale=0.1)
        done = abs(self.position) >= self.edge
        return np.array([self.position]), -abs(self.position), done, {"edge": self.edge}


def worker(remote, parent_remote, wrapper):
    parent_remote.close()
    env = wrapper.carried()
    try:
        while True:
            command, data = remote.recv()
            if command == "step":
                observation, reward, done, info = env.step(data)
                if done:
                    observation = env.reset()
                remote.send((observation, reward, done, info))
            elif command == "reset":
                remote.send(env.reset())
            elif command == "call":
                remote.send(getattr(env, data))
            elif command == "close":
                break
    finally:
        remote.close()


class SubprocessEnvs:
    def __init__(self, makers):
        self.remotes, self.work_remotes = zip(*[Pipe() for _ in makers], strict=True)
        self.processes = [
            Process(target=worker, args=(work_remote, remote, CloudpickleWrapper(maker)))
            for work_remote, remote, maker in zip(
                self.work_remotes, self.remotes, makers, strict=True
            )
        ]
        for process in self.processes:
            # if the program crashes, its environments end as well
            process.daemon = True
            process.start()
        for remote in self.work_remotes:
            remote.close()

    def ask(self, command, data):
        for remote, one in zip(self.remotes, data, strict=True):
            remote.send((command, one))
        return [remote.recv() for remote in self.remotes]

    def reset(self):
        return np.stack(self.ask("reset", [None] * len(self.remotes)))

    def step(self, actions):
        observations, rewards, dones, infos = zip(*self.ask("step", actions), strict=True)
        return np.stack(observations), np.stack(rewards), np.stack(dones), infos

    def close(self):
        for remote in self.remotes:
            remote.send(("close", None))
        for process in self.processes:
            process.join()


def main():
    edges = [1.0, 2.0, 3.0]
    envs = SubprocessEnvs([lambda i=i, edge=edge: Walk(i, edge) for i, edge in enumerate(edges)])
    print(envs.reset().tolist())
    episodes, total = 0, np.zeros(3)
    actions = np.random.default_rng(1)
    for _ in range(300):
        observations, rewards, dones, infos = envs.step(actions.normal(size=3))
        total += rewards
        episodes += int(dones.sum())
    print(episodes, total.tolist(), observations.tolist(), infos)
    print(envs.ask("call", ["edge"] * 3))
    envs.close()
    print([process.exitcode for process in envs.processes])
    try:
        envs.remotes[0].recv()
    except EOFError:
        print("the worker has closed its end")


if __name__ == "__main__":
    main()
