"""Replaces secrets by stars in text that is stored or shown, and keeps the rest readable."""

import re
from functools import cache

__all__ = ["redacted"]

HIDDEN = "***"

# The text may be hostile, so the patterns must run in linear time: repetitions are bounded or
# possessive, and a quote or bracket that is never closed is hidden to the end of the text.

# Words that mark the value after them as a secret, also inside a name: db_password, clientSecret.
_LONG = (
    r"password|passwd|passphrase|passcode|secret|token|credential|authori[sz]ation"
    r"|(?:api|access|private|account|shared|signing|encryption|master|ssh|auth)[_ -]?key"
)
# Short words that count only on their own or after a separator, as in DB_PASS.
_SHORT = r"(?<![A-Za-z])(?:pwd|pass|pw|auth|jwt|otp|sig|bearer)(?![A-Za-z])"
# Names that contain such a word but mean something else: token_count, secretary, max_tokens=4096.
_ABOUT = (
    r"(?!s?[_-]?(?:count|type|name|limit|length|len|usage|used|id|ids|expir\w{0,8}|ttl|budget"
    r"|file|path|url|uri|policy|version|size|rate|per|min|max|at|required|field|index|pos|position"
    r"|provider|manager|store|scheme|method)(?![a-z])|iz|ary|less|ed\b"
    r"|s[\"']?\s{0,3}[:=]\s{0,3}\d{1,9}(?![\w.-]))"
)
_KEY = rf"(?:(?<!expected )(?:{_LONG}){_ABOUT}[\w-]{{0,20}}|{_SHORT})"

# Values that describe a secret without being one: password: None, token: expired.
_TELLING = (
    r"(?!(?:none|null|nil|true|false|undefined|missing|required|invalid|expired|empty|unknown"
    r"|must|should|cannot|can|is|was|has|may|not|this|the|a|an|too|ensure|field|value|\*{3,})"
    r"(?![\w-])|[\"']{2}(?![\"'])|[\w-]{1,20} \*{3})"
)
_VALUE = (
    r"(?:"
    r"\\{1,4}[\"'][^\"']*+"  # JSON within a string: \"password\": \"…\"
    r"|[bBrRuU]{0,2}\"(?:[^\"\\]|\\[\s\S])*+\"?"
    r"|[bBrRuU]{0,2}'(?:[^'\\]|\\[\s\S])*+'?"
    r"|[\[({][^\])}]*+[\])}]?"
    r"|[|>][+-]?[ \t]{0,3}\n[^\n]*+"  # a block of YAML
    # A comma may be part of the secret, unless another name or a space follows.
    r"|(?:[^\s,;&\"'<]|[,;&](?![\w.\s-]{0,30}=|\s|\Z|[\"']))++"
    r")"
)
_QUOTED = r"(?:\"(?:[^\"\\]|\\[\s\S])*+\"?|'(?:[^'\\]|\\[\s\S])*+'?)"

_AUTHORIZATION = r"(authori[sz]ation[\"']?\s{0,3}[:=,]\s{0,3}b?[\"']?)"

# A private key, even if its end was cut off.
_PEM = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]*?"
    r"(?:-----END [A-Z0-9 ]{0,40}-----|\Z)"
)
# user:password@ in a URL; the password may contain an unquoted / or @.
_USER_INFO = r"(?<=://)(?:[^\s/:'\"]{0,100}:(?!\d{1,5}/)[^\s'\"]{0,300}@|[^/@\s'\"]{0,300}@)"
# Schemes with several parameters: the rest of the line is hidden.
_LONG_SCHEME = rf"{_AUTHORIZATION}(digest|aws4-hmac-sha256|signature|hawk|oauth)\s[^\r\n]*+"
_SCHEME = (
    rf"{_AUTHORIZATION}(bearer|basic|token|negotiate|ntlm|apikey|key|bot|splunk)"
    r"\s{1,3}[^\s\"',;]++"
)
_COOKIE = (
    r"\b((?:set-)?cookies?[\"']?\s{0,3}[:=,]\s{0,3}b?)(?:[\"'][^\"'\r\n]*+[\"']?|[^\"'\r\n]++)"
)
_BEARER = r"\b(bearer\s)[\w.~+/-]{8,}+={0,2}"
# ('password', 'x'): a pair of name and value, not a list of names.
_PAIR = rf"([\[(]\s{{0,3}}b?[\"'][\w-]{{0,30}}{_KEY}[\"'],\s{{0,3}})b?{_QUOTED}(?=\s{{0,3}}[\])])"
# --password x, or '--password', 'x'
_OPTION = (
    rf"((?<![\w-])--?[\w-]{{0,30}}{_KEY}[\"']?(?:,\s{{0,3}}|\s{{1,3}}))(?!-){_TELLING}{_VALUE}"
)
_USER_OPTION = r"((?<![\w-])(?:--user|-u)\s{1,3}[^\s:\"']{1,100}:)[^\s\"']++"
# password=…, "api_key": "…", <secret>…
_NAMED = rf"({_KEY}\\{{0,4}}[\"']?\]?(?:\s{{0,3}}(?:=>|:=|[:=])\s{{0,3}}|>)){_TELLING}{_VALUE}"
# PASSWORD 'x', as in SQL
_SQL = rf"((?:password|passphrase|passwd|identified by)\s{{1,3}}){_QUOTED}"
_SLACK_HOOK = r"(hooks\.slack\.com/(?:services|workflows)/)[\w/-]++"

# Secrets that are recognised by their own form, whatever comes before them.
_FORMS = (
    r"(?<![A-Za-z0-9_-])(?:"
    r"sk-(?=[A-Za-z_-]{0,60}\d)[\w-]{16,}+"  # OpenAI, Anthropic and others
    r"|(?:sk|rk|pk)_(?:live|test)_\w{8,}+|whsec_\w{16,}+"  # Stripe
    r"|(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ABIA|ACCA)[A-Z0-9]{12,}+"  # AWS
    r"|gh[pousr]_\w{16,}+|github_pat_\w{16,}+|gl(?:pat|ptt|cbt|dt|rt)-[\w-]{16,}+"
    r"|xox[a-z]-[\w-]{8,}+|xapp-[\w-]{8,}+"  # Slack
    r"|AIza[\w-]{30,}+|ya29\.[\w-]{16,}+|GOCSPX-[\w-]{16,}+"  # Google
    r"|npm_\w{30,}+|pypi-[\w-]{16,}+|hf_\w{20,}+|gsk_\w{20,}+|xai-\w{20,}+"
    r"|hv[sb]\.[\w-]{16,}+|dop_v1_\w{16,}+|dapi[0-9a-f]{32}|SG\.[\w-]{16,}+\.[\w-]{16,}+"
    r"|AGE-SECRET-KEY-1\w{16,}+|SK[0-9a-f]{32}|\d{8,10}:AA[\w-]{30,}+"
    r"|eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?"  # a JWT
    r")"
)

_REPLACEMENTS = (
    (_PEM, HIDDEN),
    (_USER_INFO, "***@"),
    (_LONG_SCHEME, r"\1\2 ***"),
    (_SCHEME, r"\1\2 ***"),
    (_COOKIE, r"\1***"),
    (_BEARER, r"\1***"),
    (_PAIR, r"\1***"),
    (_OPTION, r"\1***"),
    (_USER_OPTION, r"\1***"),
    (_NAMED, r"\1***"),
    (_SQL, r"\1***"),
    (_SLACK_HOOK, r"\1***"),
)


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """Compile at the first use: few processes redact anything, and all import this."""
    named = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in _REPLACEMENTS]
    return [*named, (re.compile(_FORMS), HIDDEN)]


def redacted(text: str) -> str:
    """Return the text with everything that looks like a secret replaced by ``***``."""
    for secret, instead in _patterns():
        text = secret.sub(instead, text)
    return text
