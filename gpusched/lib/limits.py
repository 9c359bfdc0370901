"""The numbers beyond which callers are refused and that nobody sets: of requests, logins, bad tokens, readers."""

MAX_BODY_BYTES = 16 << 20
# The first line of a request and its headers.
MAX_HEAD_BYTES = 16 << 10
# Of a log, that an agent sends at once.
MAX_LOG_BYTES = 1 << 20
LOGIN_WINDOW_SECONDS = 900
# A name alone has the widest limit: otherwise anybody could lock anybody out from one address.
MAX_PER_NAME_AND_ADDRESS, MAX_PER_ADDRESS, MAX_PER_NAME = 10, 50, 100
# From one address, of what is refused anyhow: enough for the agents of a rack that was not told of new tokens.
BAD_TOKENS_PER_MINUTE = 600
# Accounts that an admin creates, and passwords that an admin resets.
PASSWORDS_PER_MINUTE = 60
# At once, of a web process and of one caller.
MAX_DOWNLOADS, MAX_DOWNLOADS_EACH = 8, 2
MAX_STREAMS, MAX_STREAMS_EACH = 500, 100
# Questions about what would be, that wait for their answers.
MAX_QUESTIONS, MAX_QUESTIONS_EACH = 64, 32
# Refused submits of one tenant: this many at once, then this many a second. Each further answer is held back, at most
# this long.
REFUSALS_AT_ONCE, REFUSALS_PER_SECOND, LONGEST_REFUSAL_SECONDS = 20, 5, 10.0
