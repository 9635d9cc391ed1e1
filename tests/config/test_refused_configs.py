"""Every wrong configuration is refused with file, line, key, value and what is allowed, and nothing is created."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tiering.config_file import load_config, parse_config
from tiering.errors import ConfigError
from tiering.registry import resolve_tier

GOOD = "cpu_bytes_to_use: 8GiB\n"
BOX = "secondary_tier_configs:\n  - type: box\n    root_dirs: [{root}]\n"

REFUSED = [
    (
        "missing s",
        GOOD + "secondary_tier_config: []",
        ["2: secondary_tier_config: []: unknown key", "'secondary_tier_configs'"],
    ),
    (
        "policy key",
        GOOD + "evicton_policy: lru",
        ["2: evicton_policy: 'lru': unknown key", "did you mean 'eviction_policy'"],
    ),
    ("key in another case", GOOD + "Block_Size: 16", ["2: Block_Size: 16: unknown key, did you mean 'block_size'"]),
    (
        "LRU",
        GOOD + "eviction_policy: LRU",
        ["2: eviction_policy: 'LRU': unknown eviction policy", "did you mean 'lru'"],
    ),
    ("arcc", GOOD + "eviction_policy: arcc", ["'arcc'", "did you mean 'arc'", "installed: arc, arc_paper, lru"]),
    ("10GB", "cpu_bytes_to_use: 10GB", ["1: cpu_bytes_to_use: '10GB'", "did you mean 10GiB", "GiB"]),
    ("-1 bytes", "cpu_bytes_to_use: -1", ["1: cpu_bytes_to_use: -1: must not be negative"]),
    ("0 bytes", "cpu_bytes_to_use: 0", ["1: cpu_bytes_to_use: 0: must be greater than 0"]),
    ("1e30 bytes", "cpu_bytes_to_use: 1e30", ["1: cpu_bytes_to_use: '1e30': must be a whole number of bytes"]),
    ("1.0e+30 bytes", "cpu_bytes_to_use: 1.0e+30", ["1: cpu_bytes_to_use: 1e+30: must be a whole number of bytes"]),
    ("10**30 bytes", f"cpu_bytes_to_use: {10**30}", ["1: cpu_bytes_to_use: 1000000000", "is 8388608TiB or more"]),
    ("10**400 bytes", f"cpu_bytes_to_use: '{10**400}'", ["must be a whole number of bytes"]),
    ("Kubernetes' bytes", "cpu_bytes_to_use: 8Gi", ["has the unknown unit 'Gi', did you mean 8GiB"]),
    ("digits of another script", "cpu_bytes_to_use: ٣GiB", ["must be a whole number of bytes"]),
    ("octal number", GOOD + "block_size: 016", ["2: block_size: '016': is a number in base 8 or 60 for YAML"]),
    ("clock time", GOOD + "hold_timeout: 1:30", ["2: hold_timeout: '1:30': is a number in base 8 or 60"]),
    ("endless timeout", GOOD + f"hold_timeout: {'9' * 200}d", ["2: hold_timeout: '9999", "is more than 36500d"]),
    ("true bytes", "cpu_bytes_to_use: true", ["1: cpu_bytes_to_use: True: must be a whole number of bytes"]),
    ("null bytes", "cpu_bytes_to_use:", ["1: cpu_bytes_to_use: None: must be a whole number of bytes"]),
    ("no bytes", "block_size: 16", ["1: cpu_bytes_to_use: required, but not set"]),
    ("quoted threshold", GOOD + "store_threshold: '2'", ["2: store_threshold: '2': must be a whole number"]),
    (
        "negative threshold",
        GOOD + "store_threshold: -1",
        ["2: store_threshold: -1: must be greater than or equal to 0"],
    ),
    ("true threshold", GOOD + "store_threshold: true", ["2: store_threshold: True: must be a whole number"]),
    ("float threshold", GOOD + "store_threshold: 2.0", ["2: store_threshold: 2.0: must be a whole number"]),
    ("tracker of 0", GOOD + "max_tracker_size: 0", ["2: max_tracker_size: 0: must be greater than or equal to 1"]),
    ("word for a switch", GOOD + "offload_prompt_only: 1", ["2: offload_prompt_only: 1: must be true or false"]),
    ("limit 0", GOOD + "promotion_limit: 0", ["2: promotion_limit: 0: must be greater than 0"]),
    ("limit nan", GOOD + "promotion_limit: .nan", ["2: promotion_limit: nan: must be"]),
    ("limit true", GOOD + "hold_limit: true", ["2: hold_limit: True: must be a number"]),
    ("timeout in weeks", GOOD + "hold_timeout: 2w", ["2: hold_timeout: '2w': must be a number of seconds"]),
    ("block_size 0", GOOD + "block_size: 0", ["2: block_size: 0: must be greater than 0"]),
    (
        "nested key",
        GOOD + "region:\n  directry: /x",
        ["3: region.directry: '/x': unknown key, did you mean 'directory'"],
    ),
    (
        "mapping for a list",
        GOOD + "secondary_tier_configs:\n  type: box",
        ["2: secondary_tier_configs: {'type': 'box'}: must be a list"],
    ),
    ("negative processor", GOOD + "copy_cpus: [0, -1]", ["2: copy_cpus[1]: -1: must be greater than or equal to 0"]),
    ("no such processor", GOOD + f"copy_cpus: [{10**30}]", ["2: copy_cpus[0]: 1000000000", "must be less than 65536"]),
    ("no processors", GOOD + "copy_cpus: []", ["2: copy_cpus: []: must have at least 1 item"]),
    ("relative region", GOOD + "region: {directory: shm}", ["2: region.directory: 'shm': must be an absolute path"]),
    ("home as region", GOOD + "region: {directory: ~/shm}", ["2: region.directory: '~/shm': must be an absolute path"]),
    ("zero in a path", GOOD + 'region: {directory: "/a\\0b"}', ["2: region.directory: ", "must be an absolute path"]),
    ("list for a mapping", GOOD + "region: [1]", ["2: region: [1]: must be a mapping"]),
    (
        "word for a tier",
        GOOD + "secondary_tier_configs: [box]",
        ["2: secondary_tier_configs[0]: 'box': must be a mapping with the key 'type'"],
    ),
    (
        "tier without type",
        GOOD + "secondary_tier_configs:\n  - root_dirs: [/x]",
        ["3: secondary_tier_configs[0]: ", "key 'type'; installed: box, "],
    ),
    (
        "number as type",
        GOOD + "secondary_tier_configs:\n  - type: 3",
        ["3: secondary_tier_configs[0].type: 3: must name its tier"],
    ),
    (
        "unknown type",
        GOOD + "secondary_tier_configs:\n  - type: bux",
        ["3: secondary_tier_configs[0].type: 'bux': unknown tier", "did you mean 'box'"],
    ),
    (
        "root_dirr",
        GOOD + BOX + "    root_dirr: [/x]",
        ["5: secondary_tier_configs[0].root_dirr: ['/x']: unknown key", "did you mean 'root_dirs'"],
    ),
    ("no roots", GOOD + "secondary_tier_configs:\n  - type: box", ["3: secondary_tier_configs[0].root_dirs: required"]),
    (
        "threads 0",
        GOOD + BOX + "    threads: 0",
        ["5: secondary_tier_configs[0].threads: 0: must be greater than or equal to 1"],
    ),
    (
        "quoted threads",
        GOOD + BOX + "    threads: '4'",
        ["5: secondary_tier_configs[0].threads: '4': must be a whole number"],
    ),
    (
        "true threads",
        GOOD + BOX + "    threads: true",
        ["5: secondary_tier_configs[0].threads: True: must be a whole number"],
    ),
    (
        "choice",
        GOOD + BOX + "    mode: Direct",
        ["5: secondary_tier_configs[0].mode: 'Direct': must be 'auto' or 'direct', did you mean 'direct'"],
    ),
    (
        "nested in a tier",
        GOOD + BOX + "    retry: {atempts: 2}",
        ["5: secondary_tier_configs[0].retry.atempts: 2: unknown key, did you mean 'attempts'"],
    ),
    (
        "endless window",
        GOOD + BOX + f"    breaker: {{window: {10**26}}}",
        ["5: secondary_tier_configs[0].breaker.window: 100000", "must be less than or equal to 10000"],
    ),
    (
        "breaker that never opens",
        GOOD + BOX + "    breaker: {window: 4}",
        [
            "5: secondary_tier_configs[0].breaker: {'window': 4}: would never open: min_failures is 5 of the last 4",
            "allowed: 1 to 4, or a larger window",
        ],
    ),
    *(
        (
            f"{name} of 0",
            GOOD + BOX + f"    limits: {{{name}: 0s}}",
            [f"5: secondary_tier_configs[0].limits.{name}: 0.0: must be greater than 0"],
        )
        for name in ("lookup_timeout", "load_timeout", "store_timeout")
    ),
    (
        "both spellings",
        GOOD + "secondary_tiers: []\nsecondary_tier_configs: []",
        ["2: secondary_tiers: []: means the same as 'secondary_tier_configs'"],
    ),
    (
        "threshold over tiers",
        GOOD + "store_threshold: 2\n" + BOX,
        ["2: store_threshold: 2: is not supported with secondary tiers; allowed: 0 or 1"],
    ),
    ("alias keeps its name", GOOD + "secondary_tiers: [{type: bux}]", ["2: secondary_tiers[0].type: 'bux'"]),
    (
        "same root",
        GOOD + BOX + "  - {type: box, root_dirs: ['{root}/']}",
        ["5: secondary_tier_configs[1]: ", "{root}, but tier 'box' uses {root}"],
    ),
    (
        "same root with a slash too many",
        GOOD + BOX + "  - {type: box, root_dirs: ['/{root}']}",
        ["5: secondary_tier_configs[1]: 'box-2': uses /{root}, but tier 'box' uses {root}"],
    ),
    (
        "nested root",
        GOOD + BOX + "  - {type: box, root_dirs: ['{root}/deep']}",
        ["5: secondary_tier_configs[1]: ", "uses {root}/deep, but tier 'box'"],
    ),
    (
        "nested in one tier",
        GOOD + "secondary_tiers:\n - {type: box, root_dirs: [/a/b, /a]}",
        ["3: secondary_tiers[0]: ", "uses /a, but tier 'box' uses /a/b"],
    ),
    (
        "same name",
        GOOD + BOX + "    name: fast\n  - {type: box, root_dirs: [/y], name: fast}",
        ["6: secondary_tier_configs[1].name: 'fast': is the name of secondary_tier_configs[0] too"],
    ),
    (
        "two lines as name",
        GOOD + BOX + '    name: "a\\nb"',
        ["5: secondary_tier_configs[0].name: 'a\\nb': must be a word"],
    ),
    ("blank name", GOOD + BOX + "    name: ' '", ["5: secondary_tier_configs[0].name: ' ': must be a word"]),
    (
        "unused default",
        GOOD + BOX + "defaults: {thread: 2}",
        ["5: defaults.thread: 2: no configured tier has this setting, did you mean 'threads'"],
    ),
    (
        "wrong default",
        GOOD + BOX + "defaults: {threads: 0}",
        ["5: defaults.threads: 0: must be greater than or equal to 1"],
    ),
    (
        "unknown in a default",
        GOOD + BOX + "defaults:\n  retry:\n    dilay: 1s",
        ["7: defaults.retry.dilay: '1s': unknown key, did you mean 'delay'; allowed: attempts, delay"],
    ),
    (
        "wrong in a default",
        GOOD + BOX + "defaults:\n  retry:\n    delay: soon",
        ["7: defaults.retry.delay: 'soon': must be a number of seconds"],
    ),
    (
        "key twice",
        GOOD + "block_size: 16\ncpu_bytes_to_use: 1GiB",
        ["3: cpu_bytes_to_use: is set twice, first at {file}:1"],
    ),
    (
        "key twice in a tier",
        GOOD + BOX + "    type: box",
        ["5: secondary_tier_configs[0].type: is set twice, first at {file}:3"],
    ),
    ("tab", GOOD + "region:\n\tdirectory: /x", ["3: is not valid YAML", "spaces, not with tabs"]),
    ("open bracket", GOOD + "secondary_tier_configs: [", ["2: is not valid YAML"]),
    ("two documents", GOOD + "---\n" + GOOD, ["2: is not valid YAML: but found another document"]),
    ("empty", "", ["{file}: is empty; at least cpu_bytes_to_use is required"]),
    ("only a comment", "# later\n", ["{file}: is empty"]),
    ("a list", "- cpu_bytes_to_use: 8GiB", ["1: [{'cpu_bytes_to_use': '8GiB'}]: must be a mapping of settings"]),
    ("date", GOOD + "spec_name: 2026-01-01", ["2: spec_name: is read by YAML as 'timestamp'", "write it in quotes"]),
    ("python tag", GOOD + "spec_name: !!python/name:os.system", ["2: spec_name: is read by YAML as 'python/name"]),
    ("tag", GOOD + "spec_name: !mine x", ["2: spec_name: is read by YAML as what its tag says", "write it in quotes"]),
    ("contains itself", GOOD + "defaults: &x [*x]", ["2: defaults[0]: contains itself"]),
    ("too deep", GOOD + f"defaults: {'[' * 60}{']' * 60}", ["is nested too deeply; allowed: 50 levels"]),
    ("far too deep", "[" * 3000 + "]" * 3000, ["{file}: is nested too deeply"]),
    (
        "aliases of aliases",
        "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]\n" for i in range(9)),
        ["is not valid YAML: more than 100000 values"],
    ),
    (
        "merge key",
        GOOD + BOX + "    <<: {threads: 2}",
        ["5: secondary_tier_configs[0].<<: merge keys are not read; allowed: defaults"],
    ),
    ("half a surrogate pair", GOOD + 'spec_name: "\\ud800"', ["2: spec_name: holds half of a surrogate pair"]),
    ("key with an escape sequence", GOOD + '"\\e[31m": 1', ["2: '\\x1b[31m': 1: unknown key"]),
    ("list as key", GOOD + "? [a, b]\n: 1", ["2: has a key that is not a plain word"]),
    ("number as key", GOOD + "1: x", ["2: 1: 'x': unknown key"]),
    ("control character", GOOD + "spec_name: \x07", ["is not valid YAML", "special characters"]),
]


@pytest.mark.parametrize(("text", "fragments"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_tc_84_refused_with_place_and_reason(tmp_path: Path, text: str, fragments: list[str]) -> None:
    file, root = tmp_path / "tiering.yaml", tmp_path / "root"
    file.write_text(text.replace("{root}", str(root)))
    threads = threading.active_count()
    with pytest.raises(ConfigError) as caught:
        load_config(file, environ={})
    message = str(caught.value)
    assert f"{file}:" in message
    for fragment in fragments:
        expected = fragment.replace("{root}", str(root)).replace("{file}", str(file))
        assert (f"{file}:{expected}" if expected[0].isdigit() else expected) in message
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == [file]


def test_tc_84_all_problems_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tiering.yaml"
    file.write_text("store_threshold: '2'\nblock_size: 0\nblock_size: 1\nnonsense: 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, environ={})
    first, *lines = str(caught.value).splitlines()
    assert first == "4 problems in the configuration:"
    assert [line.split(": ")[1] for line in lines] == [
        "cpu_bytes_to_use",
        "store_threshold",
        "block_size",
        "nonsense",
    ]


def test_what_surrounds_an_unreadable_value_is_not_reported_too(tmp_path: Path) -> None:
    file = tmp_path / "tiering.yaml"
    file.write_text(
        GOOD + "secondary_tier_configs:\n  - type: disk\n    capacity: 1GiB\n    root_dirs: ['$X', 2026-01-01]"
    )
    with pytest.raises(ConfigError, match=r"2 problems") as caught:
        load_config(file, environ={})
    assert "root_dirs[0]: '$X': holds a variable" in str(caught.value)
    assert "root_dirs[1]: is read by YAML as 'timestamp'" in str(caught.value)


def test_a_file_too_large_to_be_a_configuration_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "tiering.yaml"
    with file.open("wb") as opened:
        opened.truncate(2**40)
    with pytest.raises(ConfigError, match="is no configuration: it is larger than 1048576 bytes"):
        load_config(file)


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_unreadable_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: (No such file|Is a directory)"):
        load_config(tmp_path / name)


def test_file_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "tiering.yaml"
    file.write_bytes(b"spec_name: \xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text: invalid start byte at byte 11"):
        load_config(file)


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"cpu_bytes_to_use": "9" * 5000 + "x"}, environ={})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpu_bytes_to_use": "8GiB", "store_threshold": "2"}, "^extra: store_threshold: '2': must be a whole number$"),
        ({}, "^extra: cpu_bytes_to_use: required, but not set$"),
        ([], "^extra: \\[\\]: must be a mapping of settings"),
        ({"cpu_bytes_to_use": {1, 2}}, "^extra: must be plain data"),
        ({"cpu_bytes_to_use": "\ud800"}, "^extra: must be plain data"),
        ({"defaults": json.loads("[" * 500 + "]" * 500)}, "^extra: .*recursion limit"),
        (
            {"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "box", "root_dirs": "/x"}]},
            "^extra: secondary_tiers\\[0\\].root_dirs: '/x': must be a list$",
        ),
    ],
)
def test_a_mapping_is_refused_as_well_as_a_file(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(settings, source="extra", environ={})


@pytest.mark.parametrize("wrong", [lambda self: None, lambda self: self.no_such_thing])
def test_a_tier_with_a_faulty_model_is_named(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[object], object]
) -> None:
    monkeypatch.setattr(resolve_tier("box").config_type, "exclusive_resources", wrong)
    tiers = [{"type": "box", "root_dirs": ["/x"]}]
    with pytest.raises(ConfigError, match=r"secondary_tiers\[0\]: 'box': cannot be checked, a fault of this tier: "):
        parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": tiers}, environ={})


def test_a_validator_that_breaks_is_named() -> None:
    tier = {"type": "box", "root_dirs": ["/x"], "name": "divide by zero"}
    with pytest.raises(ConfigError, match=r"secondary_tiers\[0\]: 'box': cannot be checked, .*: ZeroDivisionError"):
        parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": [tier]}, environ={})
