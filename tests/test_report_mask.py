import time

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


@pytest.mark.parametrize(
    "text", ["-", ".", "a.", "x", "eyJ-", "--a_", "a://", "--a-token ", "DB_PASS= ", 'token="', "-----BEGIN ", "\\"]
)
def test_ten_times_the_text_takes_about_ten_times_as_long(text):
    def seconds(length):
        began = time.process_time()
        mask(text * (length // len(text)), {})
        return time.process_time() - began

    assert seconds(500_000) < 40 * max(seconds(50_000), 0.01)


def test_a_huge_log_keeps_whole_lines_of_its_ends(tmp_path):
    log = tmp_path / "log"
    middle = f"HF_TOKEN={SECRET * 100}\n" * (9 * 2**20 // (len(SECRET) * 100 + 10))
    log.write_text("first token=abcdefgh\n" + middle + "last password: hunter22\n")
    size = log.stat().st_size
    mask_file(log)
    lines = log.read_text().splitlines()
    assert lines[0] == "first token=[masked]" and lines[-1] == "last password: [masked]"
    (note,) = [line for line in lines if line.endswith(" bytes left out]")]
    kept = lines.count("HF_TOKEN=[masked]")
    assert len(lines) == kept + 3
    kept_bytes = len("first token=abcdefgh\n") + len("last password: hunter22\n") + kept * (len(SECRET) * 100 + 10)
    assert note == f"[{size - kept_bytes} bytes left out]"
    assert 5 * 2**20 - 3000 < kept_bytes <= 5 * 2**20


def test_the_rest_of_a_private_key_that_began_in_what_is_left_out_goes_too(tmp_path):
    log = tmp_path / "log"
    body = f"{SECRET}\n" * (8 * 2**20 // (len(SECRET) + 1))
    log.write_text(
        "a\n" * 2**20 + f"-----BEGIN PRIVATE KEY-----\n{body}-----END PRIVATE KEY-----\nthe end\n"
    )
    mask_file(log)
    assert SECRET not in log.read_text() and log.read_text().endswith("\n[masked]\nthe end\n")


def test_a_sparse_log_of_terabytes_is_not_read_whole(tmp_path):
    log = tmp_path / "log"
    with open(log, "wb") as file:
        file.write(b"start\n")
        file.truncate(2**40)
        file.seek(0, 2)
        file.write(b"\nend\n")
    mask_file(log)
    assert log.read_text() == f"start\n[{2**40 + 5 - 6 - 4} bytes left out]\nend\n"


@pytest.mark.parametrize(
    "text",
    [
        f"https://{SECRET}@host/x",
        f"https://bob:p@{SECRET}@host/x",
        f"DB_PASS={SECRET}",
        f"GITHUB_PAT={SECRET}",
        f"GITHUB_PAT: {SECRET}",
        f"WANDB_API_KEY {SECRET}",
        f"PGPASSWORD={SECRET}",
        f"accessToken: {SECRET}",
        f"DefaultEndpointsProtocol=https;AccountKey={SECRET}==;EndpointSuffix=x",
        f"password=p@{SECRET}",
        rf'"password": "p\"{SECRET}"',
        rf"'password': 'p\'{SECRET}'",
        rf'"{{\"password\": \"{SECRET}\"}}"',
        rf"password=p\"{SECRET}",
        f'password="{SECRET} cut off',
        f"['--api-key', '{SECRET}']",
    ],
)
def test_more_places_of_secrets(text):
    assert SECRET not in mask(text, {}) and "[masked]" in mask(text, {})


@pytest.mark.parametrize("prefix", ["npm_", "pypi-", "sk_live_", "rk_test_"])
def test_tokens_of_registries_and_payment_services(prefix):
    assert mask(f"said {prefix}{'a1' * 18}.", {}) == "said [masked]."


@pytest.mark.parametrize("name", ["GITHUB_PAT", "DB_PASS", "PGPASSWORD"])
def test_values_of_variables_whose_name_ends_in_the_word(name):
    assert mask("said hunter2hunter2", {name: "hunter2hunter2"}) == "said [masked]"


@pytest.mark.parametrize(
    "text", ["forward pass: fused", "HF_TOKEN environment variable", "PAD_TOKEN is 50257", "file_path=/a/b", "path: x"]
)
def test_prose_stays(text):
    assert mask(text, {}) == text
