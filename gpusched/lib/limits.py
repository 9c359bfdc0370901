"""Fixed limits on requests, logins, bad tokens, downloads and streams. Callers beyond them are refused."""

MAX_BODY_BYTES = 16 << 20
# The body of a request to the OpenAI API: a long context, or many inputs.
MAX_OPENAI_BODY_BYTES = 4 << 20
# The first line of a request and its headers.
MAX_HEAD_BYTES = 16 << 10
# The piece of a log that an agent sends at once.
MAX_LOG_BYTES = 1 << 20
LOGIN_WINDOW_SECONDS = 900
# A name alone has the highest limit: otherwise one client could lock out any user.
MAX_PER_NAME_AND_ADDRESS, MAX_PER_ADDRESS, MAX_PER_NAME = 10, 50, 100
# Per address: enough for the agents of a rack that still have old tokens.
BAD_TOKENS_PER_MINUTE = 600
# Accounts that an admin creates, and passwords that an admin resets.
PASSWORDS_PER_MINUTE = 60
# Concurrent, per web process and per caller.
MAX_DOWNLOADS, MAX_DOWNLOADS_EACH = 8, 2
MAX_STREAMS, MAX_STREAMS_EACH = 500, 100
# Pending what-if questions, per web process and per caller.
MAX_QUESTIONS, MAX_QUESTIONS_EACH = 64, 32
# Refused submits of a tenant: a burst, then a rate per second. The server delays further answers, at most this long.
REFUSALS_AT_ONCE, REFUSALS_PER_SECOND, LONGEST_REFUSAL_SECONDS = 20, 5, 10.0
