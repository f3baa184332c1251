"""What `monitoring/` holds fits together: rules with cases, a dashboard of its table, a stack that starts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from monitoring_files import MONITORING, dashboard, read_yaml, rules
from prometheus import PROMTOOL, needs_prometheus


@needs_prometheus
def test_every_alert_fires_and_is_silent_as_its_cases_say() -> None:
    command = [str(PROMTOOL), "test", "rules", str(MONITORING / "rules.test.yml")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    cases = [
        (check["alertname"], bool(check["exp_alerts"]))
        for case in read_yaml("rules.test.yml")["tests"]
        for check in case["alert_rule_test"]
    ]
    assert {name for name, fires in cases if fires} == alerts
    assert {name for name, fires in cases if not fires} == alerts


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert set(rule["annotations"]) == {"summary", "fix"}
            assert rule["labels"]["severity"] in ("warning", "critical")


@needs_prometheus
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    config = (MONITORING / "prometheus.yml").read_text()
    assert "/etc/prometheus/rules.yml" in config
    path = tmp_path / "prometheus.yml"
    path.write_text(config.replace("/etc/prometheus/rules.yml", str(MONITORING / "rules.yml")))
    result = subprocess.run([str(PROMTOOL), "check", "config", str(path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_dashboard_is_what_its_script_writes() -> None:
    module = dashboard()
    assert json.loads(module.OUTPUT.read_text()) == module.dashboard()
    panels = module.dashboard()["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels) == len({panel["id"] for panel in panels})
    charts = [panel for panel in panels if panel["type"] == "timeseries"]
    assert all('run=~"$run"' in target["expr"] for panel in charts for target in panel["targets"])


def test_the_stack_listens_on_this_machine_only_and_its_images_are_pinned() -> None:
    services = read_yaml("docker-compose.yml")["services"]
    assert set(services) == {"prometheus", "alertmanager", "grafana"}
    for service in services.values():
        assert service["image"].partition(":")[2][:1] in "v123456789"
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith("./") or (MONITORING / source).exists()
    listens = [option for option in services["prometheus"]["command"] if "listen" in option]
    listens += [option for option in services["alertmanager"]["command"] if "web.listen" in option]
    assert all("=127.0.0.1:" in option for option in listens)
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
