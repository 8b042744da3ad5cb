"""Settings: read from the configuration file, the environment and arguments, typed and validated.

========== ==========================================================================
sources    the configuration file's text, with the origin of each value
convert    text or Python values to the types of a settings class; owners of written keys
settings   Config, the settings of a run, and ``load_config``, which makes it
========== ==========================================================================

Arguments win over the environment, and the environment over the file. The core's settings are the
fields of :class:`~fiber._config.settings.Config`; each backend has a settings class of its own, whose
keys have the backend's name as prefix (``FIBER_K8S_NAMESPACE``, ``k8s_namespace=``) or section.

Invariants:

- Every value keeps its origin (argument, variable, file and line), and errors name it. Values of
  fields with the metadata ``secret`` are never shown.
- An unknown key is an error in code and file, and a warning in the environment, which other programs
  may set. Keys of backends that are not in use are checked in code and file, ignored in the
  environment.
- Nothing is read at import. No state, threads or locks: functions and frozen values.

Called by ``_plugins``, ``_runtime``, ``_launch``, ``cli`` and ``testing``; calls only ``_base`` and
``model``.
"""
