"""additional_config["kgen"]: what it may say, and one line for everything else."""

import pytest

from kgen.serve.vllm.seats import OPS
from kgen.serve.vllm.settings import Settings, SettingsError, parse


@pytest.mark.parametrize("additional", [None, {}, {"decode_backend": "auto"}, "kgen", object()])
def test_without_the_key_there_are_no_settings(additional: object) -> None:
    assert parse(additional, OPS) is None


def test_an_empty_object_asks_for_whatever_the_set_holds() -> None:
    assert parse({"kgen": {}}, OPS) == Settings("", None, "op", "")


def test_everything_can_be_said() -> None:
    given = {"set": "builtin", "ops": ["moe_shared", "dense_mlp"], "fallback": "refuse", "record": "r.json"}
    assert parse({"kgen": given}, OPS) == Settings("builtin", ("moe_shared", "dense_mlp"), "refuse", "r.json")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (True, 'additional_config["kgen"] must be an object with set, ops, fallback, record, routing, is True'),
        (["moe_shared"], "must be an object"),
        ({"op": ["moe_shared"]}, "has no key 'op'; known: set, ops, fallback, record, routing"),
        ({"fallback": "stock"}, "must be op or refuse, is 'stock'"),
        ({"fallback": None}, "must be op or refuse, is None"),
        ({"set": 3}, '"set"] must be a path, is 3'),
        ({"set": " "}, "must be a path, is ' '"),
        ({"record": ["a"]}, '"record"] must be a path'),
        ({"ops": "moe_shared"}, "must list ops, each once, is 'moe_shared'"),
        ({"ops": []}, "must list ops, each once, is []"),
        ({"ops": ["moe_shared", "moe_shared"]}, "each once"),
        ({"ops": ["moe_share"]}, "'moe_share' has no seat in vLLM; seats: attn_res, kda_in_proj, kda_core"),
        ({"ops": ["mla_kv_append"]}, "'mla_kv_append' has no seat in vLLM"),
        ({"ops": [1]}, "1 has no seat"),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_line(given: object, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse({"kgen": given}, OPS)
    assert told in str(caught.value) and "\n" not in str(caught.value)
