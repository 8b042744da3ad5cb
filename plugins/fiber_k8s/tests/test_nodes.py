import pytest

from fiber_k8s.nodes import allocatable, requested


class TestAllocatable:
    @pytest.mark.parametrize(
        "text, number",
        [
            ("24580016Ki", 24580016 * 1024),
            ("8Gi", 8 * 2**30),
            ("1500M", 1.5e9),
            ("64", 64),
            ("3920m", 3.92),
            ("1e3", 1000),
            ("12E", 12e18),
        ],
    )
    def test_amounts_are_read_as_nodes_write_them(self, text, number):
        node = {"status": {"allocatable": {"thing": text}}}
        assert allocatable(node) == {"thing": pytest.approx(number)}

    def test_a_node_without_status_has_nothing(self):
        assert allocatable({"metadata": {"name": "new"}}) == {}


class TestRequested:
    def test_containers_add_up_and_what_runs_before_them_takes_their_place(self):
        def container(cpu, **more):
            return {"resources": {"requests": {"cpu": cpu}}, **more}

        spec = {
            "containers": [container("2"), container("500m")],
            "initContainers": [container("4"), container("1", restartPolicy="Always")],
            "overhead": {"cpu": "250m"},
        }
        assert requested({"spec": spec}) == {"cpu": 4.25}

    def test_a_limit_is_a_request_where_none_is_made(self):
        resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": "99"}}
        pod = {"spec": {"containers": [{"resources": resources}]}}
        assert requested(pod) == {"cpu": 1, "nvidia.com/gpu": 99}

    def test_a_pod_without_requests_fits_everywhere(self):
        assert requested({"spec": {"containers": [{"name": "main"}]}}) == {}
