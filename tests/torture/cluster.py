"""Two nodes of Ray on loopback: says where and by which processes in a line of JSON, and ends with its input."""

import json
import os
import sys

os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

from ray.cluster_utils import Cluster


def main() -> None:
    small = {"num_cpus": 2, "object_store_memory": 200 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    cluster.add_node(num_cpus=2, object_store_memory=200 << 20)
    pids = {
        f"{name} of the {place}": [process.process.pid for process in node.all_processes.get(name, [])]
        for place, node in (("head", cluster.head_node), ("other node", cluster.list_all_nodes()[-1]))
        for name in ("raylet", "gcs_server")
    }
    sys.stdout.write(json.dumps({"address": cluster.address, "pids": {k: v[0] for k, v in pids.items() if v}}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
