"""Stable-Baselines3: PPO over environments in processes, learning for some hundred steps."""

import multiprocessing

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

METHOD = "spawn"


class Failing(gymnasium.Env):
    """An environment whose process ends at a step."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, last):
        self.last = last

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.last:
            raise SystemExit(5)
        return 1, 0.0, False, False, {}


def learn():
    torch.set_num_threads(1)
    envs = make_vec_env(
        "CartPole-v1",
        n_envs=2,
        seed=3,
        vec_env_cls=SubprocVecEnv,
        vec_env_kwargs={"start_method": METHOD},
    )
    print(type(envs.processes[0]).__module__.startswith(multiprocessing.__name__))
    print(envs.num_envs, envs.observation_space, envs.env_is_wrapped(gymnasium.Wrapper))
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=32, n_epochs=2, seed=3, device="cpu")
    model.learn(total_timesteps=384)
    parameters = torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach()
    print(model.num_timesteps, len(parameters), float(parameters.double().sum()))
    envs.seed(8)
    observations = envs.reset()
    actions, _ = model.predict(observations, deterministic=True)
    print(observations.tolist(), actions.tolist())
    print(envs.get_attr("spec")[0].id, envs.env_method("get_wrapper_attr", "gravity"))
    envs.set_attr("gravity", 3.5, indices=[1])
    print(envs.get_attr("unwrapped", indices=[1])[0].gravity)
    envs.close()
    print([process.exitcode for process in envs.processes])


def lose_one():
    envs = SubprocVecEnv([lambda: Failing(3), lambda: Failing(100)], start_method=METHOD)
    envs.reset()
    try:
        for _ in range(5):
            envs.step(np.array([0, 1]))
    except EOFError:
        print("a worker has ended")
    envs.remotes[1].recv()
    for remote, process in zip(envs.remotes, envs.processes, strict=True):
        remote.close()
        process.join()
    print([process.exitcode for process in envs.processes])


if __name__ == "__main__":
    multiprocessing.freeze_support()
    learn()
    lose_one()
