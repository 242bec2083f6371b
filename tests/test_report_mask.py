import pytest

from bisect_recompute.report.mask import mask, mask_file

SECRET = "s3cr3tvalue99"


@pytest.mark.parametrize(
    "text",
    [
        f"WANDB_API_KEY={SECRET}",
        f"export HF_TOKEN='{SECRET}'",
        f'"password": "{SECRET}"',
        f"db.password: {SECRET}",
        f"--api-key {SECRET}",
        f"--api-key={SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"https://bob:{SECRET}@git.example.com/x.git",
        f"redis://:{SECRET}@cache:6379",
        f"env: {{'MY_SECRET': '{SECRET}'}}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}",
        f"client_secret={SECRET}&x=1",
        f"token={SECRET},next",
    ],
)
def test_secrets_by_their_name_or_place_are_masked(text):
    assert SECRET not in mask(text, {}) and "[masked]" in mask(text, {})


@pytest.mark.parametrize(
    "text",
    [
        "ghp_" + "a1" * 18,
        "github_pat_" + "a1" * 20,
        "glpat-" + "a1" * 10,
        "hf_" + "a1" * 17,
        "AKIA" + "ABCD" * 4,
        "xoxb-123456789012-abc",
        "nvapi-" + "a1" * 20,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def",
    ],
)
def test_tokens_of_known_form_are_masked_wherever_they_stand(text):
    assert mask(f"remote said {text}!", {}) == "remote said [masked]!"


def test_values_of_our_own_secret_variables_are_masked_in_any_place():
    assert mask("echoed hunter2hunter2 in the middle", {"JOB_PASSWORD": "hunter2hunter2", "HOME": "echoed"}) == (
        "echoed [masked] in the middle"
    )


@pytest.mark.parametrize(
    "text",
    [
        "num_tokens: 4096",
        "tokens_per_expert=[1, 2]",
        "pad_token = 0",
        "moe_token_dispatcher_type: alltoall",
        "vocab_token=50257",
        "KeyError: 'megatron'",
        "AssertionError: key and value must agree",
        "tokenizer: NullTokenizer",
        "https://github.com/NVIDIA/Megatron-LM/pull/1",
        'File "megatron/core/mlp.py", line 12, in forward',
        "is_token: true",
    ],
)
def test_what_training_logs_say_stays(text):
    assert mask(text, {}) == text


def test_masking_twice_is_masking_once():
    once = mask(f"HF_TOKEN={SECRET} and password: '{SECRET}'", {})
    assert mask(once, {}) == once


def test_log_files_are_masked_in_place(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"start \xff\nHF_TOKEN=" + SECRET.encode() + b"\nend\n")
    mask_file(log)
    assert log.read_text().splitlines() == ["start \ufffd", "HF_TOKEN=[masked]", "end"]
    mask_file(tmp_path / "missing.log")


@pytest.mark.parametrize("text", ["-", ".", "a.", "token", "x"])
def test_long_lines_cost_no_more_than_their_length(text):
    """A quadratic search takes minutes here."""
    import time

    began = time.process_time()
    mask(text * (1_000_000 // len(text)), {})
    assert time.process_time() - began < 20


def test_a_huge_log_keeps_its_ends(tmp_path):
    log = tmp_path / "log"
    log.write_text("first token=abcdefgh\n" + "x" * (8 * 2**20) + "\nlast password: hunter22\n")
    mask_file(log)
    text = log.read_text()
    assert text.startswith("first token=[masked]") and text.endswith("last password: [masked]\n")
    assert "bytes left out]" in text and len(text) < 6 * 2**20


@pytest.mark.parametrize(
    "secret",
    ["https://{}@host/x", "DB_PASS={}", "GITHUB_PAT={}", "AccountKey={}", "npm_{}", "pypi-{}", "sk_live_{}"],
)
def test_more_forms_of_secrets(secret):
    assert "abcdef0123456789ABCDEF" not in mask(secret.format("abcdef0123456789ABCDEF"), {})
