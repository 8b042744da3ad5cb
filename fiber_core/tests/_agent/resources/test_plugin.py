import pluggy

from fiber import hookspecs
from fiber._agent.resources import plugin


def test_nvidia_is_offered_through_the_hook_of_third_parties():
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()

    (answer,) = manager.hook.fiber_resource_providers()

    assert [provider.kind for provider in answer] == ["gpu"]
