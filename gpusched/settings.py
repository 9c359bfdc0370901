"""Django's settings, composed from the environment (gpusched/env.py)."""

import gc
import json
import secrets
from pathlib import Path

from django.templatetags.static import static

from gpusched import __version__, env
from gpusched.config_file import unusable_data_dir
from gpusched.installation import SERVER_ROOT
from gpusched.lib.db.connections import django_database
from gpusched.lib.limits import MAX_BODY_BYTES
from gpusched.lib.ownership import give_to_owner
from gpusched.lib.web.local_address import local_host

# Loading the apps makes many objects and hardly any garbage; to scan them is a fifth of a start. Until LibConfig.ready.
gc.disable()
ENV = env.read()
DATA_DIR = ENV.data_dir.absolute()
# None: in DATA_DIR.
FILES_DIR = Path(ENV.files_dir).absolute() if ENV.files_dir else None


def _secret_key() -> str:
    """Return the configured key, or one generated once and stored where only this user can read it.

    Raises SettingError."""
    if ENV.secret_key:
        return ENV.secret_key
    try:
        return _stored_key(DATA_DIR / "secret_key")
    except OSError as error:
        raise unusable_data_dir(error) from error


def _stored_key(path: Path) -> str:
    if not path.exists():
        DATA_DIR.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{secrets.token_hex(4)}")
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_urlsafe(48))
        try:
            give_to_owner(temporary)
            path.hardlink_to(temporary)  # atomic: if two processes start together, both use the same key
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    return path.read_text().strip()


def database_url() -> str:
    """Return the configured database, or the one that the embedded server recorded when it started."""
    written = DATA_DIR / "database_url"
    if ENV.database_url or not written.exists():
        return ENV.database_url
    return written.read_text().strip()


SECRET_KEY = _secret_key()
DEBUG = ENV.debug
# At the local address, `up` and `ready` ask whether the server is ready, and the agent of this machine connects.
ALLOWED_HOSTS = [host.strip() for host in ENV.allowed_hosts.split(",") if host.strip()] + [local_host(ENV.http_host)]
CSRF_TRUSTED_ORIGINS = [origin.strip() for origin in ENV.trusted_origins.split(",") if origin.strip()]
ROOT_URLCONF = "gpusched.urls"
ASGI_APPLICATION = "gpusched.asgi.application"

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "pgtrigger",
    "pghistory",
    "django_q",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "gpusched",
    "gpusched.lib",
    "tenants",
    "jobs",
    "nodes",
    "scheduling",
    "serving",
    "notifications",
    "frontend",
]
if ENV.oidc_issuer:  # otherwise not even imported
    INSTALLED_APPS += ["allauth", "allauth.account", "allauth.socialaccount"]
    INSTALLED_APPS += ["allauth.socialaccount.providers.openid_connect"]
MIDDLEWARE = [
    "gpusched.lib.request_id.request_id",
    "gpusched.lib.web.client_address.behind_proxies",
    "gpusched.lib.web.security_headers.security_headers",
    "gpusched.lib.api.rate_limits.rate_headers",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "frontend.ui.errors.PageMethods",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "gpusched.lib.audit.log.current_actor",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "frontend.ui.errors.AdminAddresses",
    "frontend.ui.errors.RefusalsAsPages",
    "gpusched.lib.api.dry_run.DryRuns",
    "jobs.submit.idempotency.IdempotentPosts",
]
# Calls against the layers (gpusched/lib/hooks.py).
HOOKS = {
    "admission_check": "scheduling.admission.check_request",
    "submit_simulation": "scheduling.whatif.simulate_submit.simulate",
    "gpu_memory_choice": "scheduling.auto_memory.choose",
    "largest_gpu_mb": "scheduling.auto_memory.largest_gpu_mb",
    "predicted_run_time": "scheduling.history.shown.predicted_of_job",
    "quota_effect": "scheduling.whatif.edit_effects.quota_effect",
    "policy_values": "scheduling.policy.values",
    "tenant_use": "nodes.allocation.tenant_use.TENANT_USE",
    "running_use": "nodes.allocation.tenant_use.RUNNING_USE",
    "gpu_models": "nodes.allocation.tenant_use.GPU_MODELS",
    "job_names": "jobs.listing.representation.NAMES",
    "spare_jobs": "serving.replicas.spare.SPARE_JOBS",
    "endpoint_metrics": "serving.metrics.collect",
    "notify": "notifications.outbox.enqueue",
    "notification_metrics": "notifications.metrics.collect",
}
if ENV.oidc_issuer:
    MIDDLEWARE.append("allauth.account.middleware.AccountMiddleware")
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [SERVER_ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "frontend.ui.context.page",
            ],
        },
    },
]

DATABASES = {"default": django_database(database_url())}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "logs": {
        "BACKEND": ENV.log_storage or "jobs.logs.files.LogFiles",
        "OPTIONS": json.loads(ENV.log_storage_options or "{}"),
    },
    # Large inputs and results of tasks. With an object store, they are beside the logs.
    "tasks": {
        "BACKEND": ENV.log_storage or "serving.payloads.TaskFiles",
        "OPTIONS": json.loads(ENV.log_storage_options or "{}")
        if ENV.log_storage
        else {"file_permissions_mode": 0o600, "directory_permissions_mode": 0o700},
    },
}

# The admin in the page's colours.
UNFOLD = {
    "SITE_TITLE": "gpusched admin",
    "SITE_HEADER": "gpusched admin",
    "SITE_SYMBOL": "memory",
    "SITE_URL": "/",
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda _: static("app/icon.svg")}],
    "COLORS": {
        "primary": {
            "50": "oklch(97% .014 254.6)",
            "100": "oklch(93.2% .032 255.6)",
            "200": "oklch(88.2% .059 254.1)",
            "300": "oklch(80.9% .105 251.8)",
            "400": "oklch(70.7% .165 254.6)",
            "500": "oklch(62.3% .214 259.8)",
            "600": "oklch(51% .2 262.9)",
            "700": "oklch(46% .2 264.4)",
            "800": "oklch(42.4% .199 265.6)",
            "900": "oklch(37.9% .146 265.5)",
            "950": "oklch(28.2% .091 267.9)",
        }
    },
}

LANGUAGE_CODE = "en"
USE_I18N = False
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"
SESSION_COOKIE_HTTPONLY = True
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"  # the default creates two stores per request
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
CSRF_COOKIE_SAMESITE = "Lax"
if ENV.behind_tls:
    # Only a trusted proxy can set it: gpusched.lib.web.client_address drops the header of all others.
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    SECURE_HSTS_SECONDS = 365 * 86400
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
# Of uploads, whose views read the body themselves.
UPLOAD_MAX_BYTES = {"/api/v1/tasks": max(MAX_BODY_BYTES, ENV.task_max_mb << 20)}
SOCIALACCOUNT_ADAPTER = "frontend.pages.login.sso.AccountAdapter"
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": "sso",
                "name": ENV.oidc_name,
                "client_id": ENV.oidc_client_id,
                "secret": ENV.oidc_client_secret,
                "settings": {"server_url": ENV.oidc_issuer.rstrip("/")},
            }
        ],
    }
}
AUTHENTICATION_BACKENDS = ["tenants.auth.login_throttle.ThrottledLogin"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "tenants.auth.identity.TokenAuthentication",
        "tenants.auth.identity.PageSession",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["tenants.auth.identity.ScopeForMethod"],
    "DEFAULT_RENDERER_CLASSES": ["gpusched.lib.api.rest.JsonRenderer"],
    "DEFAULT_PARSER_CLASSES": ["gpusched.lib.api.rest.JsonParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "gpusched.lib.api.rest.Negotiation",
    "DEFAULT_SCHEMA_CLASS": "gpusched.lib.api.openapi.PlainNames",
    "EXCEPTION_HANDLER": "gpusched.lib.api.problems.handle",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "gpusched",
    "DESCRIPTION": "Share a cluster of GPUs between teams, fairly, quickly and without ever losing a job.",
    "VERSION": __version__,
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "COMPONENT_SPLIT_REQUEST": True,
    "DEFAULT_GENERATOR_CLASS": "gpusched.lib.api.openapi_generator.Generator",
    "POSTPROCESSING_HOOKS": ["gpusched.lib.api.openapi.add_components"],
}

# Cycles have their own cluster, separate from housekeeping. The command `worker` chooses one.
Q_CLUSTER = {
    "name": "housekeeping",
    "orm": "default",
    "workers": 1,
    "queue_limit": 1,
    "timeout": 300,
    "retry": 600,
    "poll": 1.0,
    "guard_cycle": 0.5,
    # Keep the latest runs of each task: they show when it last succeeded (scheduling/worker/housekeeping.py).
    "save_limit": 5,
    "save_limit_per": "func",
    "max_attempts": 1,
    "ack_failures": True,
    "catch_up": False,
    "daemonize_workers": True,
    # Never replace a worker by a new one after this many tasks: each time, cycles would pause for half a second.
    "recycle": 1 << 31,
    "scheduler": True,
    "broker_class": None,
    "ALT_CLUSTERS": {
        "cycles": {
            "workers": 1,
            "queue_limit": 1,
            "timeout": 120,
            "retry": 600,
            "poll": 1.0,
            "guard_cycle": 0.5,
            "save_limit": -1,
            "scheduler": False,
            "broker_class": "scheduling.worker.broker.CycleBroker",
        },
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"},
        "json": {"()": "gpusched.lib.request_id.JsonLines"},
    },
    "filters": {
        "outages": {
            "()": "django.utils.log.CallbackFilter",
            "callback": "ext://gpusched.lib.db.outages.without_traceback",
        },
        "probes": {
            "()": "django.utils.log.CallbackFilter",
            "callback": "ext://gpusched.lib.db.outages.is_no_probe",
        },
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": ENV.log_format}},
    "root": {"handlers": ["stderr"], "level": ENV.log_level},
    "loggers": {
        "django.request": {"level": "ERROR", "filters": ["probes", "outages"]},
        "django-q": {"handlers": ["stderr"], "level": "WARNING", "propagate": False, "filters": ["outages"]},
        "daphne": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
    },
}
