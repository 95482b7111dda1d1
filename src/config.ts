import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { z } from 'zod'

/**
 * The declaration of a setting: schema, default and description. docs/operations.md contains the table of all settings. The
 * environment is parsed once; an invalid value prevents the boot with an error that names the variable.
 */
type Setting<T> = {
  schema: z.ZodType<T, string>
  default?: string
  doc: string
  group: string
  production?: boolean
  secret?: boolean
}

const setting = <T>(
  group: string,
  schema: z.ZodType<T, string>,
  fallback: string | undefined,
  doc: string,
  more: { production?: boolean; secret?: boolean } = {},
) => ({ schema, default: fallback, doc, group, ...more }) as Setting<T>

const text = z.string()
const optional = z
  .string()
  .transform(value => (value === '' ? null : value))
  .nullable() as unknown as z.ZodType<string | null, string>
const httpUrl = z
  .string()
  .refine(value => value === '' || /^https?:\/\/[^/?#\\\s@][^?#\s]*$/.test(value), 'must be an http or https URL')
  .transform(value => (value === '' ? null : value))
  .nullable() as unknown as z.ZodType<string | null, string>
const integer = (min: number, max = Number.MAX_SAFE_INTEGER) =>
  z
    .string()
    .regex(/^-?\d+$/, 'must be an integer')
    .transform(Number)
    .pipe(z.number().int().min(min).max(max))
/** An integer that is 0 or at least `min`. */
const zeroOrAtLeast = (min: number) =>
  integer(0).refine(value => value === 0 || value >= min, `must be 0 or at least ${min}`)
/** A positive integer; other values fall back to the default. */
const positiveOr = (value: number) => z.string().transform(text => (/^[1-9]\d{0,8}$/.test(text) ? Number(text) : value))
/** A positive integer; other values are treated as unset. */
const positiveOrUnset = z.string().transform(text => (/^[1-9]\d{0,8}$/.test(text) ? Number(text) : null)) as z.ZodType<
  number | null,
  string
>
/** A non-negative integer; other values fall back to the default. */
const zeroOr = (value: number) => z.string().transform(text => (/^(0|[1-9]\d{0,8})$/.test(text) ? Number(text) : value))
const fraction = z.string().transform(Number).pipe(z.number().gt(0).max(1))
const flag = z
  .string()
  .toLowerCase()
  .pipe(z.enum(['true', 'false', '1', '0', 'on', 'off', 'yes', 'no'], 'must be true or false'))
  .transform(value => ['true', '1', 'on', 'yes'].includes(value))
const list = z.string().transform(value =>
  value
    .split(',')
    .map(part => part.trim())
    .filter(part => part !== ''),
)
const proxy = z
  .string()
  .regex(/^(true|false|\d+)$/, 'must be true, false or a number of hops')
  .transform(value => (value === 'true' ? true : value === 'false' ? false : Number(value)))
const headerPrefix = z
  .string()
  .regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]+-$/, 'must consist of header name characters and end in -')
/** `name=value`; the value may contain further equals signs. */
const requiredClaim = z
  .string()
  .regex(/^(?:[^=]+=.+)?$/s, 'must be name=value')
  .transform(text => {
    const at = text.indexOf('=')
    return at < 0 ? null : { name: text.slice(0, at), value: text.slice(at + 1) }
  })
const number = (min: number, max: number) => z.string().transform(Number).pipe(z.number().min(min).max(max))
const hexKeys = list.pipe(z.array(z.string().regex(/^[0-9a-fA-F]{64}$/, 'must be 64 hex characters')))

export const WORKER_KINDS = [
  'delivery',
  'ingestion',
  'generation',
  'orchestration',
  'trigger',
  'evaluation',
  'snapshot',
] as const

const settings = {
  NODE_ENV: setting(
    'process',
    z.enum(['development', 'test', 'production']) as z.ZodType<'development' | 'test' | 'production', string>,
    'development',
    'Environment; `production` refuses development defaults.',
  ),
  PORT: setting('process', integer(0, 65535), '5047', 'Port of the web process.'),
  HOST: setting('process', text, '0.0.0.0', 'Address on which the web process listens.'),
  BASE_URL: setting('process', optional, '', 'Public URL of the deployment; default `http://localhost:PORT`.', {
    production: true,
  }),
  DOCS_BASE_URL: setting('process', optional, '', 'URL of the reference pages; default `BASE_URL/docs`.'),
  DOCS_ENABLED: setting(
    'process',
    flag,
    'true',
    'Whether `/docs` has all pages; otherwise only error codes and permissions.',
  ),
  CONSOLE_ENABLED: setting('process', flag, 'true', 'Serves the console at `BASE_URL/app`.'),
  CONSOLE_IDLE_MINUTES: setting(
    'process',
    integer(0, 1440),
    '30',
    'Minutes without input after which the console signs out; 0 never.',
  ),
  HEADER_PREFIX: setting('process', headerPrefix, 'X-Svc-', 'Prefix of outbound headers.'),
  TOOL_CONTEXT_HEADER_PREFIX: setting(
    'process',
    optional,
    '',
    'Prefix of tool context headers; default HEADER_PREFIX + `Context-`.',
  ),
  TRUST_PROXY: setting(
    'process',
    proxy,
    'false',
    'Number of trusted proxies that set X-Forwarded-For; `true` trusts all.',
  ),
  CORS_ALLOWED_ORIGINS: setting('process', list, '*', 'Allowed CORS origins, comma-separated; `*` allows any.'),
  ACTOR_TOKEN_MAX_TTL_SECONDS: setting(
    'process',
    integer(60, 86_400),
    '86400',
    'Maximum lifetime of an end-user token.',
  ),
  ACTORS_CREATED_PER_HOUR: setting(
    'process',
    integer(1),
    '10000',
    'Maximum number of actors that a key creates per hour for tokens and chat clients.',
  ),
  ACTOR_FILE_MAX_BYTES: setting('process', integer(1), '20971520', 'Maximum size of a file that an end user uploads.'),
  IDEMPOTENCY_CREDENTIAL_MAX_BYTES: setting(
    'process',
    integer(1),
    '1073741824',
    'Maximum bytes of the responses stored for the Idempotency-Keys of a credential; above it, responses older than an hour are deleted, then new keys are refused.',
  ),
  IDEMPOTENCY_PROJECT_MAX_BYTES: setting(
    'process',
    integer(1),
    '4294967296',
    'Maximum bytes of the responses stored for the Idempotency-Keys of a project, as for a credential; it concerns only credentials above their share of it.',
  ),
  HTTP_JSON_LIMIT_BYTES: setting(
    'process',
    integer(1024),
    '10485760',
    'Maximum size of a JSON body; larger bodies get 413.',
  ),
  HTTP_BODY_TIMEOUT_MS: setting('process', integer(100), '300000', 'Maximum time to receive a body; then 408.'),
  HTTP_ANONYMOUS_BODY_TIMEOUT_MS: setting(
    'process',
    integer(100),
    '30000',
    'Maximum time to receive a body without a bearer credential; then 408.',
  ),
  HTTP_ANONYMOUS_BODIES_BYTES: setting(
    'process',
    integer(4_194_304),
    '67108864',
    'Memory per process for bodies without a bearer credential; a trigger, run or client address may use a quarter of it. Beyond that, 503.',
  ),
  HTTP_IDLE_TIMEOUT_MS: setting(
    'process',
    integer(100),
    '120000',
    'Maximum pause of a client while it sends a body or reads a response.',
  ),
  HTTP_KEEP_ALIVE_MS: setting(
    'process',
    integer(1000),
    '65000',
    'Idle timeout of connections; must exceed the idle timeout of the proxies in front.',
  ),
  STREAM_PING_INTERVAL_MS: setting(
    'process',
    integer(10),
    '15000',
    "Ping interval of event streams; each ping also checks the caller's permission again.",
  ),
  STREAMS_MAX: setting('process', integer(1), '20000', 'Open session streams of a process; beyond that, 503.'),
  STREAMS_PER_PROJECT: setting(
    'process',
    integer(1),
    '5000',
    'Open session streams of a project over all processes; beyond that, 429 STREAM_LIMIT_EXCEEDED.',
  ),
  SYNC_WAIT_SECONDS: setting('process', integer(1), '300', 'Maximum time a request waits for long work.'),
  LOG_LEVEL: setting(
    'process',
    z.enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']) as z.ZodType<string, string>,
    'info',
    'Level of the JSON log.',
  ),
  ERROR_LOGS_ENABLED: setting('process', flag, 'true', 'Whether the cause of a 5xx is logged.'),
  METRICS_TOKEN: setting(
    'process',
    optional,
    '',
    'Bearer token of /metrics; if unset, only loopback addresses are allowed.',
    { secret: true },
  ),
  SCHEMA_THREADS: setting(
    'process',
    integer(1, 64),
    '2',
    'Maximum threads that run JSON Schemas, long expressions and YAML templates of callers, started on demand; each uses 20 to 300 MiB.',
  ),
  SHUTDOWN_GRACE_MS: setting('process', integer(0), '30000', 'Time for work in flight to finish after SIGTERM.'),
  INSTANCE_ID: setting(
    'process',
    optional,
    process.env.HOSTNAME ?? '',
    'Name of the host in heartbeats and logs; default HOSTNAME.',
  ),

  OPENAI_MOUNT: setting('openai', flag, 'true', 'Whether /openai/v1 is served; otherwise 404.'),
  OPENAI_ACTOR_HEADERS: setting(
    'openai',
    list,
    'X-OpenWebUI-User-Id,X-LibreChat-User-Id',
    "Comma-separated headers with a client's ID of its user, after HEADER_PREFIX + `Actor`.",
  ),
  OPENAI_SESSION_HEADERS: setting(
    'openai',
    list,
    'X-OpenWebUI-Chat-Id,X-Conversation-Id',
    "Comma-separated headers with a client's ID of its chat, after HEADER_PREFIX + `Session-Key`.",
  ),
  AGUI_MOUNT: setting('protocols', flag, 'true', 'Whether /ag-ui is served; otherwise 404.'),
  UI_MOUNT: setting('protocols', flag, 'true', 'Whether /ui/v1 is served; otherwise 404.'),
  A2A_MOUNT: setting('protocols', flag, 'false', 'Whether /a2a is served; otherwise 404.'),

  MCP_ENABLED: setting('mcp', flag, 'true', 'Whether /mcp is served; otherwise 404.'),
  MCP_SERVER_NAME: setting('mcp', text, 'platform', 'Server name reported to clients.'),
  MCP_CALL_TIMEOUT_MS: setting(
    'mcp',
    integer(100),
    '300000',
    'Maximum time a tool call waits for long work; then it returns the current record.',
  ),
  MCP_TASK_AFTER_MS: setting(
    'mcp',
    integer(0),
    '2000',
    'Time a tool call waits before long work is returned as a task.',
  ),
  MCP_RESOURCE_MAX_BYTES: setting('mcp', integer(1024), '4194304', 'Maximum content size of a resources/read.'),

  DATABASE_URL: setting('database', optional, '', 'PostgreSQL URL; takes precedence over the five settings below.', {
    secret: true,
  }),
  DATABASE_LISTEN_URL: setting(
    'database',
    optional,
    '',
    'URL of the PostgreSQL server if DATABASE_URL is a pooler; default DATABASE_URL.',
    { secret: true },
  ),
  DATABASE_HOST: setting('database', text, process.env.PGHOST ?? 'localhost', 'Host; default PGHOST.'),
  DATABASE_PORT: setting('database', integer(1, 65535), process.env.PGPORT ?? '5432', 'Port; default PGPORT.'),
  DATABASE_NAME: setting('database', text, process.env.PGDATABASE ?? 'app', 'Database; default PGDATABASE.'),
  DATABASE_USER: setting('database', text, process.env.PGUSER ?? 'app', 'User; default PGUSER.'),
  DATABASE_PASSWORD: setting('database', optional, process.env.PGPASSWORD ?? '', 'Password; default PGPASSWORD.', {
    secret: true,
  }),
  DATABASE_POOL_MAX: setting('database', integer(2), '20', 'Maximum connections per process.'),
  AUTO_MIGRATE: setting('database', flag, 'true', 'Whether a process migrates at boot, under an advisory lock.'),
  MIGRATION_LOCK_TIMEOUT_MS: setting(
    'database',
    integer(0),
    '600000',
    'Maximum time a boot waits for the migration lock.',
  ),

  JWT_SECRET: setting(
    'identity',
    optional,
    '',
    'Secret that signs tokens; at least 32 bytes in production, otherwise random per boot.',
    { production: true, secret: true },
  ),
  JWT_SECRET_PREVIOUS: setting('identity', optional, '', 'Previous secret, which verifies but does not sign tokens.', {
    secret: true,
  }),
  ADMIN_USERNAME: setting('identity', optional, '', 'Username of the first admin, created at boot if no user exists.'),
  ADMIN_PASSWORD: setting('identity', optional, '', 'Password of the first admin.', { secret: true }),
  PASSWORD_MIN_LENGTH: setting('identity', integer(1, 1024), '8', 'Minimum length of new passwords, in characters.'),
  SECRETS_ENCRYPTION_KEY: setting(
    'identity',
    hexKeys,
    '',
    'AES-256-GCM key, 64 hex characters; outside production, default is a fixed development key.',
    { production: true, secret: true },
  ),
  SECRETS_ENCRYPTION_KEY_PREVIOUS: setting(
    'identity',
    hexKeys,
    '',
    'Previous keys, comma-separated, used only to decrypt.',
    { secret: true },
  ),
  SECRETS_STORE_PREFIX: setting(
    'identity',
    z
      .string()
      .regex(/^(?:[A-Za-z0-9_.+=@-]|\{project_id\}|\/)*$/, 'must be path segments joined by /')
      .refine(text => text.includes('{project_id}') && text.endsWith('/'), 'must contain {project_id} and end in /'),
    'muster/{project_id}/',
    'Path of a project in external secret stores; secrets are only read below it.',
  ),
  SECRETS_STORE_TIMEOUT_MS: setting('identity', integer(100, 60_000), '5000', 'Timeout of a read from a secret store.'),
  SECRETS_VAULT_ADDR: setting(
    'identity',
    httpUrl,
    '',
    'URL of a Vault with a key-value engine (version 2); if unset, secrets cannot refer to Vault.',
  ),
  SECRETS_VAULT_MOUNT: setting('identity', text, 'secret', 'Mount path of the key-value engine.'),
  SECRETS_VAULT_NAMESPACE: setting('identity', optional, '', 'Vault namespace.'),
  SECRETS_VAULT_TOKEN: setting('identity', optional, '', 'Vault token; requires read access below the prefix.', {
    secret: true,
  }),
  SECRETS_VAULT_TOKEN_FILE: setting(
    'identity',
    optional,
    '',
    'File with the Vault token, as an alternative; read at each use, so that an agent can renew it.',
  ),
  SECRETS_AWS_REGION: setting(
    'identity',
    optional,
    '',
    'Region of AWS Secrets Manager, read with the AWS keys of the deployment; if unset, secrets cannot refer to it.',
  ),
  SECRETS_AWS_ENDPOINT: setting(
    'identity',
    httpUrl,
    '',
    'URL of AWS Secrets Manager; default the endpoint of the region.',
  ),
  KEY_MAX_TTL_DAYS: setting('identity', integer(0), '0', 'Maximum lifetime of a project key; 0 disables the limit.'),
  OIDC_ISSUER: setting(
    'identity',
    httpUrl.refine(
      value => !value?.includes('/.well-known/'),
      'must be the issuer, not the URL of its discovery document',
    ),
    '',
    'Issuer of a company identity provider; with OIDC_CLIENT_ID, enables company sign-in.',
  ),
  OIDC_CLIENT_ID: setting('identity', optional, '', 'Client ID of this deployment at the identity provider.'),
  OIDC_CLIENT_SECRET: setting('identity', optional, '', 'Client secret; if unset, the client is public.', {
    secret: true,
  }),
  OIDC_SCOPES: setting(
    'identity',
    text.refine(value => value.split(' ').includes('openid'), 'must include openid'),
    'openid profile email',
    'Scopes requested from the identity provider, separated by spaces.',
  ),
  OIDC_USERNAME_CLAIM: setting(
    'identity',
    text,
    'preferred_username',
    'Claim from which usernames of provisioned users are derived.',
  ),
  OIDC_REQUIRED_CLAIM: setting(
    'identity',
    requiredClaim,
    '',
    'Claim `name=value` required at every sign-in, as a string or in a list of strings.',
  ),
  OIDC_AUTO_PROVISION: setting(
    'identity',
    flag,
    'false',
    'Whether a user is created at the first sign-in of an unknown account.',
  ),
  OIDC_DEFAULT_POLICY_IDS: setting('identity', list, '', 'Policies of provisioned users, comma-separated.'),
  OAUTH_CIMD_ENABLED: setting(
    'identity',
    flag,
    'true',
    'Whether OAuth clients described by a metadata document are accepted.',
  ),
  OAUTH_CIMD_HOSTS: setting(
    'identity',
    list.pipe(z.array(z.string().regex(/^(\*|(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*)$/, 'must be *, host or *.suffix'))),
    '*',
    'Allowed hosts of client metadata documents, comma-separated: `*`, host or `*.suffix`.',
  ),
  OAUTH_REGISTRATION_ENABLED: setting('identity', flag, 'true', 'Whether OAuth clients may register themselves.'),
  OAUTH_INTROSPECTION_ENABLED: setting(
    'identity',
    flag,
    'false',
    'Whether confidential OAuth clients may introspect their refresh tokens.',
  ),
  OAUTH_DEVICE_ENABLED: setting('identity', flag, 'true', 'Whether the OAuth device grant is enabled.'),
  OAUTH_CONSENT_URL: setting(
    'identity',
    httpUrl,
    '',
    'URL of the consent page, with the origin of BASE_URL; default `BASE_URL/oauth/consent`.',
  ),
  OAUTH_ACCESS_TOKEN_TTL_SECONDS: setting(
    'identity',
    integer(10, 86_400),
    '3600',
    'Lifetime of an OAuth access token.',
  ),
  OAUTH_REFRESH_TOKEN_TTL_SECONDS: setting(
    'identity',
    integer(60, 31_536_000),
    '2592000',
    'Lifetime of an OAuth refresh token; a grant ends if none is used within it.',
  ),
  OAUTH_REFRESH_REUSE_GRACE_SECONDS: setting(
    'identity',
    integer(0, 300),
    '60',
    'Time in which a used refresh token returns its successor once more, for clients that lost the response or refresh concurrently; later use ends its grant. 0 disables the grace.',
  ),
  OAUTH_GRANT_MAX_SECONDS: setting(
    'identity',
    integer(60, 315_360_000),
    '31536000',
    'Maximum lifetime of an OAuth grant; then the user must consent again.',
  ),
  PROVIDER_AMBIENT_CREDENTIALS: setting(
    'identity',
    flag,
    'false',
    "Whether bedrock and vertex providers may use the deployment's own credentials.",
  ),

  EGRESS_ALLOW_HOSTS: setting(
    'egress',
    text,
    '',
    'Internal addresses that outbound requests may reach, comma-separated: host, host:port, *.suffix, IP or CIDR.',
  ),
  EGRESS_DNS_SERVERS: setting(
    'egress',
    text,
    '',
    'Name servers for addresses set by callers, comma-separated IP or IP:port; default the system resolver.',
  ),
  EGRESS_MAX_REDIRECTS: setting('egress', integer(0, 20), '5', 'Maximum redirects of a webhook delivery.'),
  // A longer call with an Idempotency-Key would be treated as lost.
  TOOL_CALL_TIMEOUT_MS: setting(
    'egress',
    integer(1000, 800_000),
    '300000',
    'Timeout of a tool call, including redirects and nested calls.',
  ),
  TOOL_MAX_RESPONSE_BYTES: setting(
    'egress',
    integer(1),
    '10485760',
    'Maximum response size of a tool; a call with nested calls may buffer four times as much.',
  ),
  TOOL_MAX_REDIRECTS: setting('egress', integer(0, 20), '5', 'Maximum redirects of a tool call.'),
  GUARDRAIL_CONTEXT_TIMEOUT_MS: setting(
    'egress',
    integer(100, 60_000),
    '5000',
    "Timeout of a call of a guardrail's context tool.",
  ),
  GUARDRAIL_CONTEXT_TTL_MS: setting(
    'egress',
    integer(0, 3_600_000),
    '5000',
    "Cache time of a context tool's response per principal; 0 disables caching.",
  ),
  PIPELINE_MAX_DEPTH: setting('egress', integer(1, 20), '5', 'Maximum nesting depth of tool calls made by tools.'),
  SHARES_ALLOW_PUBLIC: setting(
    'egress',
    flag,
    'false',
    'Whether projects may share tools and agents with all other projects.',
  ),

  WORKER_KINDS: setting(
    'workers',
    list.pipe(z.array(z.enum(WORKER_KINDS))),
    WORKER_KINDS.join(','),
    'Concerns of a worker process that is started without arguments.',
  ),
  WORKER_CONCURRENCY: setting(
    'workers',
    integer(1, 1000),
    '10',
    'Messages processed concurrently, per queue and process.',
  ),
  PROJECT_WORKER_SHARE: setting(
    'workers',
    fraction,
    '0.5',
    "Maximum share of a worker's slots per project while other projects wait.",
  ),
  WORKER_HEALTH_PORT: setting('workers', integer(0, 65535), '5048', 'Port of the health endpoints of a worker.'),
  WORKER_HEARTBEAT_INTERVAL_MS: setting('workers', integer(100), '5000', 'Interval of worker heartbeats.'),
  WORKER_HEARTBEAT_STALE_MS: setting(
    'workers',
    integer(500),
    '30000',
    'Age of the heartbeat at which a worker is not ready.',
  ),
  JOB_RETENTION_DAYS: setting('workers', integer(1), '7', 'Retention of finished jobs.'),
  CONVERSATION_SWEEP_SECONDS: setting(
    'workers',
    integer(1),
    '30',
    'Polling interval for conversations with due turns but no message.',
  ),
  SESSION_SWEEP_SECONDS: setting('workers', integer(1), '60', 'Polling interval for expired sessions.'),
  SESSION_FRAMES_KEEP_HOURS: setting(
    'workers',
    integer(1),
    '24',
    'Retention of the events with which an interrupted session stream resumes.',
  ),
  GENERATION_LEASE_SECONDS: setting('workers', integer(2), '60', 'Lease of a turn, renewed every third of it.'),
  GENERATION_SWEEP_SECONDS: setting('workers', integer(1), '30', 'Polling interval for turns without a message.'),
  GENERATION_MAX_SECONDS: setting('workers', integer(1), '1800', 'Maximum running time of a turn segment.'),
  GENERATION_TOOL_CONCURRENCY: setting(
    'workers',
    integer(1, 64),
    '8',
    'Tool calls executed concurrently per step of a turn.',
  ),
  GENERATION_TOOL_RESULT_MAX_BYTES: setting(
    'workers',
    integer(1024),
    '1048576',
    'Maximum size of a tool result in a turn; a call with a larger result fails.',
  ),
  GENERATION_ACTION_TTL_SECONDS: setting(
    'workers',
    integer(0),
    '604800',
    'Time after which a turn that waits for its client fails; 0 disables expiry.',
  ),
  DECISION_LEASE_SECONDS: setting(
    'workers',
    integer(2),
    '600',
    'Lease of a decision whose tool is called, renewed every quarter of it.',
  ),
  DECISION_SWEEP_INTERVAL_MS: setting('workers', integer(1000), '60000', 'Polling interval for orphaned decisions.'),
  DATASET_MAX_ITEMS: setting('workers', integer(1, 1_000_000), '10000', 'Maximum items per dataset.'),
  DATASET_MAX_BYTES: setting(
    'workers',
    integer(1024, 1_099_511_627_776),
    '268435456',
    'Maximum total size of the items of a dataset, which an eval run copies in one transaction.',
  ),
  DATASET_IMPORT_MAX_BYTES: setting(
    'workers',
    integer(1024, 10_737_418_240),
    '104857600',
    'Maximum size of an imported dataset file.',
  ),
  EVAL_WORKER_BATCH: setting(
    'workers',
    positiveOr(5),
    '5',
    'Eval items executed concurrently per worker process. Invalid values fall back to the default.',
  ),
  EVAL_WORKER_INTERVAL_MS: setting(
    'workers',
    positiveOr(5000),
    '5000',
    'Polling interval for orphaned eval items and runs. Invalid values fall back to the default.',
  ),
  EVAL_TASK_LEASE_TTL_MS: setting(
    'workers',
    positiveOr(300_000),
    '300000',
    'Lease of an eval item, at most 60 seconds, and the time for which it occupies a slot while it waits for its turn. Invalid values fall back to the default.',
  ),
  EVAL_RUN_ABANDONED_AFTER_MS: setting(
    'workers',
    positiveOr(1_800_000),
    '1800000',
    'Time after which an eval item that waits for its turn is checked; it fails if the turn was deleted. Invalid values fall back to the default.',
  ),
  EVAL_SYNC_ITEM_CAP: setting(
    'workers',
    positiveOr(25),
    '25',
    'Maximum items of an eval run with `wait`. Invalid values fall back to the default.',
  ),
  MEMORY_RULE_TIMEOUT_SECONDS: setting('workers', integer(1), '120', 'Timeout of the handler of a memory rule firing.'),
  MAX_CONTINUATION_CHAIN_GENERATIONS: setting(
    'workers',
    positiveOr(100),
    '100',
    'Maximum turns of a continuation chain. Invalid values fall back to the default.',
  ),
  MAX_ORCHESTRATION_RUN_DEPTH: setting(
    'workers',
    positiveOr(10),
    '10',
    'Maximum nesting depth of orchestration runs. Invalid values fall back to the default.',
  ),
  ORCHESTRATION_QUEUE_DRIVER: setting(
    'workers',
    text,
    'postgres',
    'Queue driver; only `postgres` is supported. With any other value, runs and run workers do not start.',
  ),
  ORCHESTRATION_WORKER_CONCURRENCY: setting(
    'workers',
    positiveOr(10),
    '10',
    'Node executions run concurrently per process.',
  ),
  ORCHESTRATION_ADVANCE_CONCURRENCY: setting(
    'workers',
    positiveOr(4),
    '4',
    'Run advances executed concurrently per process.',
  ),
  ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES: setting(
    'workers',
    zeroOr(50),
    '50',
    'Maximum concurrent node executions per project, across all processes; 0 disables the limit.',
  ),
  ORCHESTRATION_NODE_LEASE_SECONDS: setting(
    'workers',
    positiveOr(60),
    '60',
    'Lease of a node execution, renewed every third of it.',
  ),
  ORCHESTRATION_NODE_MAX_DELIVERIES: setting(
    'workers',
    positiveOr(5),
    '5',
    'Maximum claims of a node execution after lost workers.',
  ),
  ORCHESTRATION_NODE_TIMEOUT_MS: setting(
    'workers',
    positiveOr(600_000),
    '600000',
    'Default timeout of an execution of a tool, poll, knowledge or memory_write node.',
  ),
  ORCHESTRATION_RUN_MAX_STEPS: setting(
    'workers',
    positiveOr(10_000),
    '10000',
    'Maximum node executions and polls per run.',
  ),
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: setting(
    'workers',
    positiveOr(5000),
    '5000',
    'Polling interval for due runs and expired leases.',
  ),
  ORCHESTRATION_SHUTDOWN_GRACE_MS: setting(
    'workers',
    positiveOrUnset,
    '',
    'Shutdown grace of run advances and node executions; default SHUTDOWN_GRACE_MS.',
  ),
  ORCHESTRATION_WORKER_HEARTBEAT_FILE: setting(
    'workers',
    optional,
    '',
    'File written by a run worker after each successful poll of its queues, for health checks without HTTP.',
  ),
  ORCHESTRATION_WORKER_HEARTBEAT_STALE_MS: setting(
    'workers',
    positiveOr(30_000),
    '30000',
    'Age of the heartbeat file at which the worker is not ready.',
  ),
  ORCHESTRATION_WAIT_MAX_MS: setting('process', positiveOr(120_000), '120000', 'Maximum time `wait` waits for a run.'),
  TRIGGER_WORKER_CONCURRENCY: setting(
    'workers',
    positiveOr(10),
    '10',
    'Trigger firings processed concurrently per process.',
  ),
  TRIGGER_SCHEDULER_INTERVAL_MS: setting(
    'workers',
    positiveOr(5000),
    '5000',
    'Maximum polling interval for due schedules, orphaned firings and firings of resumed projects.',
  ),
  TRIGGER_SCHEDULER_DISABLED: setting('workers', flag, 'false', 'Whether workers skip schedules.'),
  TRIGGER_FIRING_LEASE_SECONDS: setting(
    'workers',
    positiveOr(60),
    '60',
    'Lease of the message of a firing, at most 60.',
  ),
  TRIGGER_FIRING_MAX_ATTEMPTS: setting(
    'workers',
    positiveOr(3),
    '3',
    'Maximum lost workers per tool call of a trigger; each calls the tool with the same idempotency key.',
  ),
  TRIGGER_FIRE_WAIT_MAX_MS: setting('workers', positiveOr(120_000), '120000', 'Maximum time a manual firing waits.'),
  TRIGGER_HOOK_TOLERANCE_SECONDS: setting(
    'workers',
    positiveOr(300),
    '300',
    'Maximum clock difference of the timestamp of a signed hook.',
  ),
  TRIGGER_MAX_CAUSATION_DEPTH: setting(
    'workers',
    positiveOr(5),
    '5',
    'Maximum length of the trigger chain of an event that fires another trigger.',
  ),
  EVENT_FANOUT_MAX: setting(
    'workers',
    positiveOr(10_000),
    '10000',
    'Maximum event trigger firings caused, directly or indirectly, by one event or one manual, scheduled or requested firing.',
  ),
  TRIGGER_MAX_PER_PROJECT: setting('workers', integer(1), '1000', 'Maximum triggers per project.'),
  TRIGGER_EVENT_MAX_PER_PROJECT: setting(
    'workers',
    integer(1, 1000),
    '100',
    'Maximum event triggers per project; each event is matched against all of them.',
  ),
  TRIGGER_FIRING_RETENTION_DAYS: setting('workers', integer(1), '30', 'Retention of settled firings.'),
  TASK_AUTOMATION_CHAIN_LIMIT: setting(
    'workers',
    positiveOr(50),
    '50',
    'Maximum consecutive automated transitions of a task. Invalid values fall back to the default.',
  ),
  TASK_APPROVAL_TTL_SECONDS: setting(
    'workers',
    positiveOr(86_400),
    '86400',
    'Time after which the approval of a task transition expires.',
  ),
  TASK_WORKER_CONCURRENCY: setting(
    'workers',
    positiveOr(10),
    '10',
    'Task dispatches processed concurrently per process.',
  ),
  TASKS_SCHEDULER_INTERVAL_MS: setting(
    'workers',
    positiveOr(5000),
    '5000',
    'Polling interval for stalled tasks, orphaned dispatches and overdue playbook steps.',
  ),
  TASKS_DISPATCH_LEASE_SECONDS: setting(
    'workers',
    positiveOr(300),
    '300',
    'Lease of a task dispatch, renewed every third of it.',
  ),
  TASKS_DISPATCH_RECONCILE_GRACE_MS: setting(
    'workers',
    positiveOr(60_000),
    '60000',
    'Delay before a task checks whether its dispatch settled without a notification; doubled after each check, at most an hour.',
  ),
  PLAYBOOK_EXPORT_TTL_DAYS: setting('workers', zeroOr(30), '30', 'Retention of export files; 0 disables expiry.'),
  PLAYBOOK_EXPORT_LEASE_SECONDS: setting(
    'workers',
    positiveOr(300),
    '300',
    'Lease of an export in progress, renewed every quarter of it.',
  ),
  AGENT_MAX_STEPS_CEILING: setting('workers', integer(1), '200', 'Maximum of max_steps.'),
  AGENT_MAX_CALL_DEPTH: setting('workers', integer(0), '10', 'Default and maximum of max_call_depth.'),
  PROVIDER_MAX_RETRIES: setting(
    'workers',
    integer(0, 10),
    '7',
    'Maximum retries of a model call: two hold the slot of a worker, between the others a turn waits in the queue.',
  ),
  MODEL_CALL_TIMEOUT_MS: setting('workers', integer(100), '600000', 'Timeout of a model call, up to the last byte.'),
  MODEL_STREAM_IDLE_MS: setting(
    'workers',
    integer(100),
    '120000',
    'Maximum silence of a model after the first byte of its answer.',
  ),
  MODEL_LISTING_TIMEOUT_MS: setting('workers', integer(100), '15000', 'Timeout of a model listing.'),
  OLLAMA_BASE_URL: setting('workers', text, 'http://localhost:11434', 'Default endpoint of ollama providers.'),
  FAULT_POINTS: setting(
    'workers',
    optional,
    '',
    'Fault injection for tests: `point=kill` or `point=freeze:<ms>`; refused in production.',
  ),

  EVENT_DATA_MAX_BYTES: setting(
    'control',
    integer(0),
    '0',
    'Maximum size of event data; larger data is reduced to its scalar fields. 0 disables the limit.',
  ),
  EVENT_RETENTION_DAYS: setting('control', integer(1), '30', 'Retention of events.'),
  WEBHOOK_TIMEOUT_MS: setting('control', integer(100), '10000', 'Timeout of a delivery attempt, including redirects.'),
  WEBHOOK_LEASE_MS: setting(
    'control',
    integer(200),
    '60000',
    'Lease of a delivery attempt; must exceed WEBHOOK_TIMEOUT_MS.',
  ),
  APPROVAL_SWEEP_INTERVAL_MS: setting(
    'control',
    integer(1000),
    '60000',
    'Polling interval for expired approvals and unprocessed follow-ups.',
  ),
  WEBHOOK_SWEEP_INTERVAL_MS: setting(
    'control',
    integer(100),
    '5000',
    'Polling interval for due deliveries without a valid lease.',
  ),
  // Above 5,000, an event does not fit into one transaction of the dispatcher.
  WEBHOOK_MAX_PER_PROJECT: setting('control', integer(1, 5000), '100', 'Maximum webhooks per project.'),
  FORMATION_RESOURCE_TYPES_CONFIG: setting(
    'formations',
    optional,
    '',
    "JSON file with the resource types of the operator's handlers, read at process start.",
  ),
  FORMATION_DEPLOY_TIMEOUT_MS: setting(
    'formations',
    integer(1000),
    '600000',
    'Maximum time a request waits for a deploy, which then continues in the background.',
  ),
  FORMATION_FORCE_CONFLICTS: setting(
    'formations',
    flag,
    'true',
    'Whether deploys overwrite changes made outside of them by default.',
  ),
  WEBHOOK_DELIVERY_RETENTION_DAYS: setting('control', integer(1), '30', 'Retention of settled deliveries.'),
  WEBHOOK_AUTO_DISABLE: setting(
    'control',
    flag,
    'true',
    'Whether a webhook is disabled after 100 consecutive failed deliveries over at least a day.',
  ),
  GUARDRAIL_EVALUATION_RETENTION_DAYS: setting(
    'control',
    integer(0),
    '90',
    'Retention of guardrail evaluations; 0 disables expiry.',
  ),
  USAGE_REQUEST_FLUSH_INTERVAL_MS: setting(
    'control',
    integer(10, 86_400_000),
    '60000',
    'Interval at which counted requests of keys are written as usage; a killed process loses the unwritten counts.',
  ),
  USAGE_REQUEST_METERING_DISABLED: setting('control', flag, 'false', 'Whether requests of keys are not metered.'),
  USAGE_ROLLUP_DAYS: setting(
    'control',
    zeroOrAtLeast(40),
    '0',
    'Age at which usage events are replaced by sums per hour, at least 40; events of a turn remain as long as its record. 0 disables it.',
  ),
  AUDIT_RETENTION_DAYS: setting('control', integer(0), '365', 'Retention of audit entries; 0 disables expiry.'),
  AUDIT_QUEUE_MAX_SIZE: setting(
    'control',
    integer(1),
    '1000',
    'Maximum buffered audit entries of reads; further entries are dropped and counted.',
  ),
  ACTIVITY_RETENTION_DAYS: setting('control', integer(0), '0', 'Retention of activity entries; 0 disables expiry.'),
  CONTENT_RETENTION_SWEEP_INTERVAL_MS: setting(
    'control',
    integer(1000),
    '86400000',
    'Interval of erasure and deletion according to the retention settings of projects: trace_content_retention_days, trace_retention_days, conversation_retention_days, run_retention_days.',
  ),
  CONTENT_RETENTION_SWEEP_DISABLED: setting(
    'control',
    flag,
    'false',
    'Whether the retention settings of projects are not applied.',
  ),
  AUDIT_RETENTION_SWEEP_DISABLED: setting(
    'control',
    flag,
    'false',
    'Whether the daily deletion of audit entries is disabled.',
  ),
  FILES_STORAGE_PROVIDER: setting(
    'content',
    text,
    'postgres',
    'Backend of new files: postgres, local or s3. Existing files remain in their backend.',
  ),
  FILES_STORAGE_DIR: setting('content', optional, '', 'Directory of the local backend.'),
  FILES_S3_BUCKET: setting('content', optional, '', 'Bucket of the s3 backend.'),
  FILES_S3_REGION: setting(
    'content',
    optional,
    process.env.AWS_REGION ?? '',
    'Region of the s3 backend; default AWS_REGION.',
  ),
  FILES_S3_KEY_PREFIX: setting('content', text, '', 'Prefix of object keys.'),
  FILES_S3_ENDPOINT: setting('content', optional, '', 'URL of an S3-compatible store.'),
  FILES_S3_FORCE_PATH_STYLE: setting(
    'content',
    flag,
    'false',
    'Whether the bucket is part of the path instead of the host name.',
  ),
  FILES_S3_IDLE_TIMEOUT_MS: setting(
    'content',
    integer(100),
    '30000',
    'Idle timeout of a request to the store, which is tried up to three times, and of a client that reads a download.',
  ),
  FILES_MAX_UPLOAD_BYTES: setting('content', integer(1), '104857600', 'Maximum file size; larger uploads get 413.'),
  // Bytes staged an hour ago count as abandoned.
  UPLOAD_TIMEOUT_MS: setting(
    'content',
    integer(100, 3_300_000),
    '3000000',
    'Maximum time to receive an upload; then 408.',
  ),
  FILES_INLINE_MAX_BYTES: setting(
    'content',
    integer(1, 300_000_000),
    '26214400',
    'Maximum file size in a JSON body or response and in a converter call, before base64.',
  ),
  FILES_MEMORY_BYTES: setting(
    'content',
    integer(1_048_576),
    '268435456',
    'Memory per process for files sent to models and converters, at six times their size; further calls wait.',
  ),
  FILE_BLOB_CHUNK_BYTES: setting('content', integer(1024, 16_777_216), '262144', 'Chunk size of the postgres backend.'),
  UPLOAD_TOKEN_TTL_SECONDS: setting('content', integer(60, 3600), '900', 'Default lifetime of an upload token.'),
  FILE_DOWNLOAD_TOKEN_TTL_SECONDS: setting('content', integer(1), '600', 'Lifetime of a download URL for a converter.'),
  DOCUMENT_CONTENT_MAX_BYTES: setting(
    'content',
    integer(1, 50_000_000),
    '5242880',
    'Maximum inline text of a document.',
  ),
  SYNC_INGESTION_MAX_BYTES: setting(
    'content',
    z
      .string()
      .transform(value => (Number.isSafeInteger(Number(value)) && Number(value) > 0 ? Number(value) : 10_485_760)),
    '10485760',
    'Maximum size of a file ingested with `wait=true`. Invalid values fall back to the default.',
  ),
  INGESTION_MAX_TRIES: setting(
    'content',
    integer(1, 10),
    '3',
    'Maximum attempts of an ingestion that fails for an unknown reason.',
  ),
  INGESTION_LEASE_SECONDS: setting('content', integer(2), '60', 'Lease of an ingestion, renewed every third of it.'),
  INGESTION_STALL_TIMEOUT_MS: setting(
    'content',
    integer(1000),
    '300000',
    'Time without progress after which an ingestion fails.',
  ),
  INGESTION_QUEUE_TIMEOUT_MS: setting(
    'content',
    integer(1000),
    '3600000',
    'Maximum time an ingestion waits for a worker.',
  ),
  CONVERSION_STALL_TIMEOUT_MS: setting(
    'content',
    integer(1000),
    '1800000',
    'Maximum time to wait for the callback of a converter.',
  ),
  CONVERTER_TIMEOUT_MS: setting('content', integer(100), '120000', 'Timeout of a converter call.'),
  INGESTION_MAX_TEXT_BYTES: setting(
    'content',
    integer(1, 200_000_000),
    '52428800',
    'Maximum text of a document; its chunks, which repeat overlaps, may have twice as much in total.',
  ),
  INGESTION_PDF_PROCESSES: setting(
    'content',
    integer(1, 100),
    '2',
    'PDFs read concurrently per worker, each in a process of up to 512 MiB; others wait.',
  ),
  INGESTION_MAX_PAGES: setting('content', integer(1), '5000', "Maximum pages of a PDF or of a converter's output."),
  INGESTION_MAX_CHUNKS: setting('content', integer(1), '20000', 'Maximum chunks per document.'),
  EMBEDDING_PROVIDER: setting(
    'content',
    z.enum(['', 'openai', 'ollama', 'bedrock', 'local']).transform(value => (value === '' ? null : value)),
    '',
    'Embedding provider: openai, ollama, bedrock or local. If unset, there are no vectors and search is lexical.',
  ),
  EMBEDDING_MODEL: setting('content', optional, '', 'Embedding model; `local-hash-v1` for local.'),
  EMBEDDING_DIMENSIONS: setting(
    'content',
    integer(32, 4096),
    '1024',
    'Number of vector dimensions; must match the model.',
  ),
  EMBEDDING_API_KEY: setting('content', optional, '', 'API key of the provider; default OPENAI_API_KEY for openai.', {
    secret: true,
  }),
  EMBEDDING_BASE_URL: setting('content', optional, '', "OpenAI-compatible endpoint to use instead of the provider's."),
  EMBEDDING_REGION: setting('content', optional, '', 'Region of bedrock; default AWS_REGION, then us-east-1.'),
  EMBEDDING_BATCH_SIZE: setting('content', integer(1, 2048), '64', 'Maximum texts per provider call.'),
  EMBEDDING_CONCURRENCY: setting('content', integer(1, 100), '5', 'Concurrent provider calls per process.'),
  EMBEDDING_TIMEOUT_MS: setting('content', integer(100), '30000', 'Timeout of a provider call.'),
  EMBEDDING_INLINE_TIMEOUT_MS: setting(
    'content',
    integer(0),
    '5000',
    'Maximum time a document write waits for its vectors; a worker creates the remaining ones.',
  ),
  EMBEDDING_MAX_INPUT_CHARS: setting('content', integer(500, 32_000), '8000', 'Maximum characters per vector.'),
  EMBEDDING_INPUT_1M_TOKEN_PRICE_USD: setting(
    'content',
    number(0, 1e6),
    '0',
    'Price of one million embedded tokens, in US dollars.',
  ),
  KNOWLEDGE_VECTOR_INDEX: setting(
    'content',
    z.enum(['auto', 'scan', 'pgvector']),
    'auto',
    'Vector index: auto uses pgvector if installed, pgvector requires it, scan does not use it.',
  ),
  KNOWLEDGE_CODE_CACHE_BYTES: setting(
    'content',
    integer(0),
    '67108864',
    'Memory per process for vector codes of frequently searched projects and for recently read vectors; 0 disables caching.',
  ),
  KNOWLEDGE_CANDIDATE_FACTOR: setting(
    'content',
    integer(1, 1000),
    '40',
    'Candidates of the vector scan per requested result.',
  ),
  KNOWLEDGE_RRF_K: setting('content', number(0.001, 1000), '60', 'Constant k of reciprocal rank fusion.'),
  KNOWLEDGE_RECENCY_HALF_LIFE_DAYS: setting(
    'content',
    number(0, 36_500),
    '0',
    'Half-life of memories in the ranking; 0 disables decay.',
  ),
  KNOWLEDGE_TEXT_SEARCH_CONFIG: setting('content', text, 'simple', 'PostgreSQL text search configuration.'),
  KNOWLEDGE_QUERY_TIMEOUT_MS: setting('content', integer(10), '5000', 'Timeout of a search channel.'),
  KNOWLEDGE_EMBED_TIMEOUT_MS: setting('content', integer(10), '5000', 'Timeout of the embedding of a query.'),
  KNOWLEDGE_INJECTION_MAX_CHARS: setting(
    'content',
    integer(1000),
    '20000',
    'Maximum characters of recalled knowledge per turn.',
  ),
} satisfies Record<string, Setting<unknown>>

type Settings = { [K in keyof typeof settings]: (typeof settings)[K] extends Setting<infer T> ? T : never }

export type Config = Omit<
  Settings,
  | 'BASE_URL'
  | 'DOCS_BASE_URL'
  | 'OAUTH_CONSENT_URL'
  | 'DATABASE_URL'
  | 'DATABASE_LISTEN_URL'
  | 'JWT_SECRET'
  | 'INSTANCE_ID'
  | 'TOOL_CONTEXT_HEADER_PREFIX'
> & {
  BASE_URL: string
  /** Whether BASE_URL is set, not derived from PORT. */
  baseUrlGiven: boolean
  DOCS_BASE_URL: string
  OAUTH_CONSENT_URL: string
  DATABASE_URL: string
  DATABASE_LISTEN_URL: string
  JWT_SECRET: string
  INSTANCE_ID: string
  TOOL_CONTEXT_HEADER_PREFIX: string
  production: boolean
}

export type SettingProblem = { variable: string; message: string }

/** Invalid settings, one per line of the message. `variable` is the first. */
export class ConfigError extends Error {
  readonly variable: string
  readonly problems: readonly SettingProblem[]
  constructor(variable: string, message: string, others: readonly SettingProblem[] = []) {
    const problems = [{ variable, message }, ...others]
    super(problems.map(problem => `${problem.variable}: ${problem.message}`).join('\n'))
    this.variable = variable
    this.problems = problems
  }
}

/** Documented defaults of settings whose actual default depends on the environment. */
const documentedDefaults: Record<string, string> = {
  INSTANCE_ID: '',
  DATABASE_HOST: 'localhost',
  DATABASE_PORT: '5432',
  DATABASE_NAME: 'app',
  DATABASE_USER: 'app',
  DATABASE_PASSWORD: '',
}

/** Returns the settings as rows, for docs/operations.md and `muster doctor`. */
export const settingRows = () =>
  Object.entries(settings as Record<string, Setting<unknown>>).map(([name, entry]) => ({
    name,
    group: entry.group,
    default: documentedDefaults[name] ?? entry.default ?? '',
    required_in_production: entry.production === true,
    secret: entry.secret === true,
    meaning: entry.doc,
  }))

/** Credentials in URLs. */
const USER_INFO = /(?<=\/\/)[^/?#@\s]*(?:@[^/?#@\s]*)*@/g

/** Returns the effective settings of a process; the values of secrets are null, and URLs are without credentials. */
export const effectiveSettings = (config: Config) =>
  settingRows().map(({ name, group, default: fallback, secret, meaning }) => {
    const value = config[name as keyof Config] as unknown
    const text = typeof value === 'string' ? value : Array.isArray(value) ? value.join(',') : JSON.stringify(value)
    const { schema } = (settings as Record<string, Setting<unknown>>)[name]
    const unset = schema.safeParse(fallback)
    return {
      name,
      group,
      value: secret || value === null ? null : text.replace(USER_INFO, '[redacted]@'),
      default: fallback,
      doc: meaning,
      secret,
      set: !unset.success || JSON.stringify(unset.data) !== JSON.stringify(value),
    }
  })

/**
 * Parses an environment into the configuration.
 * @throws ConfigError with all missing and invalid variables
 */
export function loadConfig(env: Record<string, string | undefined> = process.env): Config {
  const parsed: Record<string, unknown> = {}
  const production = env.NODE_ENV === 'production'
  const problems: SettingProblem[] = []
  const addProblem = (variable: string, message: string) => problems.push({ variable, message })
  for (const [name, entry] of Object.entries(settings as Record<string, Setting<unknown>>)) {
    const value = env[name]
    const result = entry.schema.safeParse(value === undefined || value === '' ? (entry.default ?? '') : value)
    if (production && entry.production && !value) addProblem(name, 'is required in production')
    else if (!result.success) addProblem(name, result.error.issues[0].message)
    else parsed[name] = result.data
  }
  const config = parsed as unknown as Config
  config.production = production
  config.baseUrlGiven = config.BASE_URL !== null && config.BASE_URL !== undefined
  config.BASE_URL = (config.BASE_URL ?? `http://localhost:${config.PORT}`).replace(/(?<!\/)\/+$/, '')
  if (config.baseUrlGiven && !URL.canParse(config.BASE_URL)) addProblem('BASE_URL', 'must be an absolute URL')
  config.DOCS_BASE_URL = (config.DOCS_BASE_URL ?? `${config.BASE_URL}/docs`).replace(/(?<!\/)\/+$/, '')
  if (env.DOCS_BASE_URL && !URL.canParse(config.DOCS_BASE_URL)) addProblem('DOCS_BASE_URL', 'must be an absolute URL')
  config.OAUTH_CONSENT_URL = config.OAUTH_CONSENT_URL ?? `${config.BASE_URL}/oauth/consent`
  if (URL.parse(config.OAUTH_CONSENT_URL)?.origin !== URL.parse(config.BASE_URL)?.origin)
    addProblem('OAUTH_CONSENT_URL', 'must have the origin of BASE_URL')
  config.TOOL_CONTEXT_HEADER_PREFIX = config.TOOL_CONTEXT_HEADER_PREFIX ?? `${config.HEADER_PREFIX}Context-`
  if (!/^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/.test(config.TOOL_CONTEXT_HEADER_PREFIX))
    addProblem('TOOL_CONTEXT_HEADER_PREFIX', 'must consist of header name characters')
  config.INSTANCE_ID = config.INSTANCE_ID ?? `${hostname()}-${randomBytes(4).toString('hex')}`
  if (production && typeof config.JWT_SECRET === 'string' && Buffer.byteLength(config.JWT_SECRET) < 32)
    addProblem('JWT_SECRET', 'must be at least 32 bytes in production')
  config.JWT_SECRET = config.JWT_SECRET ?? randomBytes(32).toString('base64url')
  if (production && config.OIDC_ISSUER?.startsWith('http:'))
    addProblem('OIDC_ISSUER', 'must be an https URL in production')
  if (production && config.FAULT_POINTS) addProblem('FAULT_POINTS', 'must not be set in production')
  if (config.WEBHOOK_LEASE_MS <= config.WEBHOOK_TIMEOUT_MS)
    addProblem('WEBHOOK_LEASE_MS', 'must be greater than WEBHOOK_TIMEOUT_MS')
  if (config.SECRETS_ENCRYPTION_KEY?.length > 1)
    addProblem('SECRETS_ENCRYPTION_KEY', 'must be a single key; set older keys in SECRETS_ENCRYPTION_KEY_PREVIOUS')
  const [first, ...others] = problems
  if (first) throw new ConfigError(first.variable, first.message, others)
  config.DATABASE_URL ??= databaseUrl(config)
  config.DATABASE_LISTEN_URL ??= config.DATABASE_URL
  return config
}

/** Returns the URL from the five DATABASE_ settings. */
function databaseUrl(config: Config): string {
  const url = new URL(
    `postgres://${config.DATABASE_HOST}:${config.DATABASE_PORT}/${encodeURIComponent(config.DATABASE_NAME)}`,
  )
  url.username = config.DATABASE_USER
  if (config.DATABASE_PASSWORD) url.password = config.DATABASE_PASSWORD
  return url.href
}
