"""Compares HTTP answers with recorded ones, apart from what belongs to the recording."""

import json
from collections.abc import Set as AbstractSet
from typing import Any

import httpx

Json = dict[str, Any] | list[Any] | str | float | bool | None

MASKED = frozenset(
    {
        *("ID", "TcpPort", "HttpPort", "RpcPort", "id", "remote_address", "hostname", "tcp_port", "http_port"),
        *("distributed_id", "node_id", "start_time", "timestamp", "offset", "queue_offset", "queue_cnt_index"),
        *("depth", "depth_ts", "depth_ts_nano", "depth_size", "connect_ts", "leader_load_factor", "node_load_factor"),
        *("backend_depth", "message_count", "channel_num", "msg_size_stats", "msg_write_latency_stats"),
        *("rpc_stats", "ErrStats"),
    }
)
"""Keys whose values are of the recording: only their type is compared."""


def differences(recorded: Json, actual: Json, masked: AbstractSet[str] = frozenset(), path: str = "") -> list[str]:
    """Tell where two JSON values differ."""
    name = path.rpartition(".")[2]
    if name in MASKED or name in masked:
        return [] if type(recorded) is type(actual) else [f"{path}: {type(actual)} instead of {type(recorded)}"]
    if isinstance(recorded, dict) and isinstance(actual, dict):
        if recorded.keys() != actual.keys():
            return [f"{path}: keys {sorted(actual)} instead of {sorted(recorded)}"]
        return [found for key in recorded for found in differences(recorded[key], actual[key], masked, f"{path}.{key}")]
    if isinstance(recorded, list) and isinstance(actual, list):
        if len(recorded) != len(actual):
            return [f"{path}: {len(actual)} entries instead of {len(recorded)}"]
        pairs = zip(recorded, actual, strict=True)
        return [found for a, b in pairs for found in differences(a, b, masked, f"{path}.[]")]
    return [] if recorded == actual else [f"{path}: {json.dumps(actual)} instead of {json.dumps(recorded)}"]


def compare_answer(step: dict[str, Any], answer: httpx.Response, masked: AbstractSet[str] = frozenset()) -> list[str]:
    """Tell where an HTTP answer differs from the recorded step: status, headers, body."""
    found = []
    if answer.status_code != step["status"]:
        found.append(f"status {answer.status_code} instead of {step['status']}: {answer.text}")
    for header, key in (("content-type", "content_type"), ("x-nsq-content-type", "x_nsq_content_type")):
        if key in step and answer.headers.get(header) != step[key]:
            found.append(f"{header} {answer.headers.get(header)} instead of {step[key]}")
    if "body_text" in step or step.get("body") == "":
        text = step.get("body_text", "")
        return found if answer.text == text else [*found, f"{answer.text!r} instead of {text!r}"]
    return found + differences(step["body"], answer.json(), masked)
