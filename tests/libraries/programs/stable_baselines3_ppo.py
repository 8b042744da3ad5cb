"""Stable-Baselines3: PPO over environments in processes, learning for some hundred steps."""

import multiprocessing

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

METHOD = "spawn"


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


if __name__ == "__main__":
    multiprocessing.freeze_support()
    learn()
