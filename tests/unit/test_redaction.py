"""Secrets are hidden, whatever their shape, and nothing else is."""

import time

import pytest

from weakincentives.redaction import redacted

PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEAhunter2\nhunter2==\n"
    "-----END RSA PRIVATE KEY-----"
)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.hunter2hunter2hunter2"

# Each contains "hunter2" where the secret is.
SECRETS = [
    # names and values
    "password=hunter2",
    "Password: hunter2 was refused",
    "passwd=hunter2;host=db",
    "pwd=hunter2",
    "Server=db;Uid=sa;Pwd=hunter2;Database=x",
    "pass=hunter2",
    "DB_PASS: hunter2",
    "passphrase=hunter2",
    "passphrase: 'hunter2 with words'",
    "secret=hunter2",
    "client_secret: hunter2",
    "clientSecret=hunter2",
    "token=hunter2",
    "accessToken: hunter2",
    "api_key=hunter2",
    "api-key: hunter2",
    "apiKey=hunter2",
    "private_key=hunter2",
    "privateKey: hunter2",
    "AccountName=x;AccountKey=hunter2==;EndpointSuffix=y",
    "Endpoint=sb://x;SharedAccessKeyName=n;SharedAccessKey=hunter2=",
    "aws_secret_access_key = hunter2",
    "AWS_SECRET_ACCESS_KEY=hunter2/bar+baz",
    "PGPASSWORD=hunter2 psql",
    "MYSQL_PWD=hunter2",
    "credentials=hunter2",
    "REDIS_AUTH=hunter2",
    "password=hun,hunter2",
    "password=p&hunter2",
    "otp=hunter2",
    "?sv=2020&sig=hunter2%3D",
    "auth: hunter2",
    "jwt=hunter2",
    # other notations
    '{"password": "hunter2"}',
    '{"password":"hun\\"hunter2"}',
    '"{\\"password\\": \\"hunter2\\"}"',
    "{'db_password': 'hunter2', 'x': 1}",
    "Config(user='a', password='hunter2', port=3)",
    'Config(secret=b"hunter2")',
    "password:\n  hunter2",
    "password: |\n  hunter2\n",
    "export API_TOKEN='hunter2'",
    "<password>hunter2</password>",
    "password => hunter2",
    'environ["TOKEN"] = "hunter2"',
    "('password', 'hunter2')",
    "[('Authorization', 'hunter2')]",
    "(b'x-api-key', b'hunter2')",
    "mysql --password hunter2 -h db",
    "mysql --password=hunter2 -h db",
    "['deploy', '--api-key', 'hunter2']",
    "curl -u alice:hunter2 https://x",
    "ALTER USER x WITH PASSWORD 'hunter2'",
    "CREATE USER x IDENTIFIED BY 'hunter2'",
    'password="unclosed hunter2',
    "password='" + "x" * 3_000 + "hunter2'",
    "token=" + "x" * 3_000 + "hunter2",
    "tokens: ['hunter2', 'abc']",
    # headers
    "Authorization: Bearer hunter2.abc",
    "Authorization: Basic aHVudGVyMg==hunter2",
    "Authorization: Token hunter2",
    "authorization: token hunter2",
    "{'Authorization': 'Bearer hunter2'}",
    'Authorization: Digest username="a", response="hunter2"',
    "Authorization: AWS4-HMAC-SHA256 Credential=x/y, Signature=hunter2",
    "Proxy-Authorization: Basic hunter2",
    "X-Api-Key: hunter2",
    "X-Auth-Token: hunter2",
    "Cookie: a=b; session=hunter2",
    "Set-Cookie: session=hunter2; Path=/; HttpOnly",
    "{'Cookie': 'a=1; session=hunter2'}",
    "sent bearer hunter2hunter2",
    # URLs
    "redis://user:hunter2@host:6379/0",
    "redis://:hunter2@host",
    "redis://user:hun/hunter2@host/0",
    "redis://user:hun@hunter2@host/0",
    "postgresql+psycopg://u:hunter2@db/x",
    "https://api.example.com/v1?access_token=hunter2&page=2",
    "https://hooks.slack.com/services/T000/B000/hunter2",
    # known by their form
    "Incorrect API key provided: sk-hunter2abcdefghij1234567890",
    "sk-proj-abc_hunter2-abcdefghij1234567890",
    "sk-ant-api03-hunter2-abcdefghij",
    "sk_live_hunter2abcdef",
    "ghp_hunter2abcdefghijklmnopqrst",
    "github_pat_11ABC_hunter2abcdefghijkl",
    "glpat-hunter2-abcdefghijk",
    "xoxb-1234567890-hunter2",
    "AIzaSyhunter2abcdefghijklmnopqrstuvwxyz",
    "ya29.hunter2abcdefghijklmnop",
    "hf_hunter2abcdefghijklmnop",
    "npm_hunter2abcdefghijklmnopqrstuvwxyz123",
    "pypi-hunter2abcdefghijklm",
    "SG.hunter2abcdefghijkl.abcdefghijklmnopqrs",
    "hvs.hunter2abcdefghijklmn",
    f"got {JWT} instead",
    PEM,
    PEM.replace("\n", "\\n"),
    PEM[:60] + "hunter2",
    PEM.replace("RSA ", "OPENSSH "),
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_hidden(text: str) -> None:
    shown = redacted(text)
    assert "hunter2" not in shown
    assert "***" in shown


@pytest.mark.parametrize("text", ["AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE"])
def test_an_access_key_is_hidden(text: str) -> None:
    assert redacted(f"key {text} is unknown") == "key *** is unknown"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("redis://user:hunter2@host:6379/0 is down", "redis://***@host:6379/0 is down"),
        ("password=hunter2, retrying", "password=***, retrying"),
        ("Authorization: Bearer abc.def.ghi", "Authorization: Bearer ***"),
        ("Server=db;Pwd=hunter2;Database=x", "Server=db;Pwd=***;Database=x"),
        ("?access_token=hunter2&page=2", "?access_token=***&page=2"),
        ("Config(user='a', password='b', port=3)", "Config(user='a', password=***, port=3)"),
        (f"before {PEM} after", "before *** after"),
        ("<password>hunter2</password>", "<password>***</password>"),
    ],
)
def test_what_stands_beside_it_stays(text: str, kept: str) -> None:
    assert redacted(text) == kept


INNOCENT = [
    "nothing to hide",
    "token count 5",
    "token_count=5, max_tokens=4096",
    "{'prompt_tokens': 12, 'completion_tokens': 3, 'total_tokens': 15}",
    '"max_tokens": 4096',
    "tokens: 512 of 8192",
    "Unexpected token: '}' at line 3",
    "Unexpected token < in JSON at position 0",
    "expected token: NAME",
    "tokenizer=bert-base, tokenization: fast",
    "token_type: bearer",
    "token_limit=100",
    "the token has expired",
    "password must be at least 8 characters",
    "password: None",
    "password=''",
    "password: must not be empty",
    "password: This field is required",
    "token: expired",
    "authentication failed for user 'alice'",
    "author=alice, authority: example.org",
    "bypass: yes, compass=north, passenger: Bob",
    "all tests pass",
    "pass rate: 0.9",
    "secretary: Bob",
    "secret_name=prod/db",
    "key=orders, primary_key: id, cache_key=abc123, idempotency_key=order-17",
    "KeyError: 'user'",
    "monkey=1 keyboard=us hockey: 3",
    "session_id=6f3f0c9e, request_id=17",
    "missing fields: ['password', 'email', 'name']",
    "cookies are disabled",
    "AUTH <password> called without any password configured for the default user",
    "https://example.org/users/@bob and https://host:8080/@x",
    "mail bob@example.org about https://example.org/a?b=c",
    "sk-learn and risk-assessment-of-everything-we-know",
    "scikit sk-this-is-a-long-hyphenated-name",
    "design: 12, signal=3, sig",
    "disk usage 93 %",
    "Xr2xwqSDXvNc9Yvbf0bT of orders-dlq",
    "6f3f0c9e-8f7a-4b60-9d13-0a5f4f6f8f11",
    "'utf-8' codec can't decode byte 0xff in position 0",
    "[Errno 111] Connection refused: ('127.0.0.1', 6379)",
    "-u user is not known",
    "-----BEGIN CERTIFICATE-----",
]


@pytest.mark.parametrize("text", INNOCENT)
def test_an_innocent_text_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text


HOSTILE = [
    "password=",
    'password="',
    "password='",
    "password=,",
    "password: [",
    'password="\\',
    "-----BEGIN PRIVATE KEY-----",
    "://",
    "://a:",
    "://a:b@",
    "Authorization: ",
    "Authorization: Digest ",
    "Cookie: ",
    "--password ",
    "('password', '",
    "password '",
    "eyJaaaaaaaa.",
    "sk-",
    "sk-a",
    "a-",
    "SG.aaaaaaaaaaaaaaaa",
    "1234567890:AA",
    "token\\\\",
    "tokens",
    "pass",
    "-u a:",
    "bearer ",
    "[({",
    "\n",
    " ",
    "a",
    "_-_-",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_the_time_it_takes_is_linear(piece: str) -> None:
    """A text far longer than is ever redacted takes a tenth of a second; squared, minutes."""
    text = piece * (100_000 // len(piece))
    began = time.thread_time()
    redacted(text)
    assert time.thread_time() - began < 3
