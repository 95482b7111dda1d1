import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { z } from 'zod'

/**
 * The environment, parsed once. Every setting is declared here with its default and its meaning;
 * docs/operations.md prints this table. An invalid value stops the boot and names the variable.
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
const address = z
  .string()
  .refine(value => value === '' || /^https?:\/\/[^/?#\\\s@]+[^?#\s]*$/.test(value), 'must be an http or https address')
  .transform(value => (value === '' ? null : value))
  .nullable() as unknown as z.ZodType<string | null, string>
const integer = (min: number, max = Number.MAX_SAFE_INTEGER) =>
  z
    .string()
    .regex(/^-?\d+$/, 'must be an integer')
    .transform(Number)
    .pipe(z.number().int().min(min).max(max))
/** What is no positive integer means the default. */
const positiveOr = (value: number) =>
  z.string().transform(given => (/^[1-9]\d{0,8}$/.test(given) ? Number(given) : value))
/** What is no positive integer is unset. */
const positiveOrUnset = z
  .string()
  .transform(given => (/^[1-9]\d{0,8}$/.test(given) ? Number(given) : null)) as z.ZodType<number | null, string>
/** What is no integer from 0 on means the default. */
const zeroOr = (value: number) =>
  z.string().transform(given => (/^(0|[1-9]\d{0,8})$/.test(given) ? Number(given) : value))
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
const headerPrefix = z.string().regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]+-$/, 'must be header-name characters ending in -')
/** `name=value`: the value may hold further equals signs. */
const requiredClaim = z
  .string()
  .regex(/^(?:[^=]+=.+)?$/s, 'must be name=value')
  .transform(given => {
    const at = given.indexOf('=')
    return at < 0 ? null : { name: given.slice(0, at), value: given.slice(at + 1) }
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
    'Production refuses development defaults.',
  ),
  PORT: setting('process', integer(0, 65535), '5047', 'Port of the web process.'),
  HOST: setting('process', text, '0.0.0.0', 'Address the web process binds.'),
  BASE_URL: setting('process', optional, '', 'Public address of the deployment; default `http://localhost:PORT`.', {
    production: true,
  }),
  DOCS_BASE_URL: setting('process', optional, '', 'Address of the reference pages; default `BASE_URL/docs`.'),
  HEADER_PREFIX: setting('process', headerPrefix, 'X-Svc-', 'Prefix of outbound headers.'),
  TOOL_CONTEXT_HEADER_PREFIX: setting(
    'process',
    optional,
    '',
    'Prefix of context headers; default HEADER_PREFIX + `Context-`.',
  ),
  TRUST_PROXY: setting('process', proxy, 'false', 'true, or the number of proxies whose X-Forwarded-For is believed.'),
  CORS_ALLOWED_ORIGINS: setting('process', list, '*', 'Comma list of origins; `*` is any.'),
  HTTP_JSON_LIMIT_BYTES: setting(
    'process',
    integer(1024),
    '10485760',
    'Largest JSON body; above it REQUEST_REJECTED 413.',
  ),
  HTTP_BODY_TIMEOUT_MS: setting(
    'process',
    integer(100),
    '300000',
    'Longest time that a body takes to arrive; then 408.',
  ),
  HTTP_ANONYMOUS_BODY_TIMEOUT_MS: setting(
    'process',
    integer(100),
    '30000',
    'Longest time that a body takes to arrive where no bearer credential came with it; then 408.',
  ),
  HTTP_ANONYMOUS_BODIES_BYTES: setting(
    'process',
    integer(4_194_304),
    '67108864',
    'Memory of a process for bodies that come without a bearer credential, of which one trigger, run or client address may hold a quarter; above it 503.',
  ),
  HTTP_IDLE_TIMEOUT_MS: setting(
    'process',
    integer(100),
    '120000',
    'Longest pause of a client in the middle of sending a body or reading an answer.',
  ),
  HTTP_KEEP_ALIVE_MS: setting(
    'process',
    integer(1000),
    '65000',
    'How long an idle connection is kept; above the idle time after which the proxies in front close theirs.',
  ),
  STREAM_PING_INTERVAL_MS: setting(
    'process',
    integer(10),
    '15000',
    'Ping of an event stream; each checks again whether its caller may still read it.',
  ),
  SYNC_WAIT_SECONDS: setting('process', integer(1), '300', 'Longest blocking answer of waited work.'),
  LOG_LEVEL: setting(
    'process',
    z.enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']) as z.ZodType<string, string>,
    'info',
    'Level of the JSON log lines.',
  ),
  ERROR_LOGS_ENABLED: setting('process', flag, 'true', 'Log the cause of a 5xx.'),
  METRICS_TOKEN: setting('process', optional, '', 'Bearer of /metrics; unset: loopback only.', { secret: true }),
  SCHEMA_THREADS: setting(
    'process',
    integer(1, 64),
    '2',
    'Threads that compile and run JSON Schemas of callers, started when they are needed; each takes 20 MiB, at most 300.',
  ),
  SHUTDOWN_GRACE_MS: setting('process', integer(0), '30000', 'Time that work in flight has to finish after SIGTERM.'),
  INSTANCE_ID: setting(
    'process',
    optional,
    process.env.HOSTNAME ?? '',
    'Name of this host in heartbeats and logs; default HOSTNAME.',
  ),

  MCP_ENABLED: setting('mcp', flag, 'true', 'Serve /mcp; false: 404.'),
  MCP_SERVER_NAME: setting('mcp', text, 'platform', 'Name of the server that clients are told.'),
  MCP_CALL_TIMEOUT_MS: setting(
    'mcp',
    integer(100),
    '300000',
    'Longest wait of one tool call for long work; then it answers the record as it is.',
  ),
  MCP_TASK_AFTER_MS: setting('mcp', integer(0), '2000', 'Wait of a tool call before long work is answered as a task.'),
  MCP_RESOURCE_MAX_BYTES: setting('mcp', integer(1024), '4194304', 'Largest content of one resources/read.'),

  DATABASE_URL: setting('database', optional, '', 'PostgreSQL address; wins over the five below.', { secret: true }),
  DATABASE_LISTEN_URL: setting(
    'database',
    optional,
    '',
    'Address of the server itself where DATABASE_URL is that of a pooler; default DATABASE_URL.',
    { secret: true },
  ),
  DATABASE_HOST: setting('database', text, process.env.PGHOST ?? 'localhost', 'Server; PGHOST is its default.'),
  DATABASE_PORT: setting('database', integer(1, 65535), process.env.PGPORT ?? '5432', 'Port; PGPORT is its default.'),
  DATABASE_NAME: setting('database', text, process.env.PGDATABASE ?? 'app', 'Database; PGDATABASE is its default.'),
  DATABASE_USER: setting('database', text, process.env.PGUSER ?? 'app', 'User; PGUSER is its default.'),
  DATABASE_PASSWORD: setting(
    'database',
    optional,
    process.env.PGPASSWORD ?? '',
    'Password; PGPASSWORD is its default.',
    {
      secret: true,
    },
  ),
  DATABASE_POOL_MAX: setting('database', integer(2), '20', 'Connections of one process.'),
  AUTO_MIGRATE: setting('database', flag, 'true', 'Migrate at boot, behind an advisory lock.'),
  MIGRATION_LOCK_TIMEOUT_MS: setting('database', integer(0), '600000', 'How long a boot waits for the migration lock.'),

  JWT_SECRET: setting(
    'identity',
    optional,
    '',
    'Signs every token; at least 32 bytes in production; random per boot elsewhere.',
    { production: true, secret: true },
  ),
  JWT_SECRET_PREVIOUS: setting('identity', optional, '', 'Verifies, never signs.', { secret: true }),
  ADMIN_USERNAME: setting('identity', optional, '', 'First admin at boot when no user exists.'),
  ADMIN_PASSWORD: setting('identity', optional, '', 'Password of that admin.', { secret: true }),
  PASSWORD_MIN_LENGTH: setting('identity', integer(1, 1024), '8', 'Characters of a new password.'),
  SECRETS_ENCRYPTION_KEY: setting(
    'identity',
    hexKeys,
    '',
    '64 hex characters, AES-256-GCM; outside production a fixed development key.',
    { production: true, secret: true },
  ),
  SECRETS_ENCRYPTION_KEY_PREVIOUS: setting('identity', hexKeys, '', 'Comma list, decrypt only.', { secret: true }),
  SECRETS_STORE_PREFIX: setting(
    'identity',
    z
      .string()
      .regex(/^(?:[A-Za-z0-9_.+=@-]|\{project_id\}|\/)*$/, 'must be names joined by /')
      .refine(text => text.includes('{project_id}') && text.endsWith('/'), 'must contain {project_id} and end in /'),
    'muster/{project_id}/',
    'Folder of a project in external stores of secrets: its secrets are read below it and nowhere else.',
  ),
  SECRETS_STORE_TIMEOUT_MS: setting('identity', integer(100, 60_000), '5000', 'One read of a secret from its store.'),
  SECRETS_VAULT_ADDR: setting(
    'identity',
    address,
    '',
    'Address of a Vault whose key-value engine (version 2) may hold secrets; unset: no secret lies there.',
  ),
  SECRETS_VAULT_MOUNT: setting('identity', text, 'secret', 'Mount of that engine.'),
  SECRETS_VAULT_NAMESPACE: setting('identity', optional, '', 'Namespace of that Vault.'),
  SECRETS_VAULT_TOKEN: setting(
    'identity',
    optional,
    '',
    'Token for that Vault: read access below the prefix is enough.',
    {
      secret: true,
    },
  ),
  SECRETS_VAULT_TOKEN_FILE: setting(
    'identity',
    optional,
    '',
    'File that holds the token instead, read at each use: an agent may renew it.',
  ),
  SECRETS_AWS_REGION: setting(
    'identity',
    optional,
    '',
    "Region of an AWS Secrets Manager that may hold secrets, read with the deployment's AWS keys; unset: no secret lies there.",
  ),
  SECRETS_AWS_ENDPOINT: setting('identity', address, '', 'Its address, where it is not the usual one of the region.'),
  KEY_MAX_TTL_DAYS: setting('identity', integer(0), '0', 'Longest life of a project key; 0 = no bound.'),
  OIDC_ISSUER: setting(
    'identity',
    address.refine(value => !value?.includes('/.well-known/'), 'must be the issuer, not its discovery document'),
    '',
    'Issuer of the identity provider of a company; with OIDC_CLIENT_ID it enables sign-in with its accounts.',
  ),
  OIDC_CLIENT_ID: setting('identity', optional, '', 'Client of this deployment at that provider.'),
  OIDC_CLIENT_SECRET: setting('identity', optional, '', 'Secret of that client; unset: a public client.', {
    secret: true,
  }),
  OIDC_SCOPES: setting(
    'identity',
    text.refine(value => value.split(' ').includes('openid'), 'must include openid'),
    'openid profile email',
    'Scopes requested from that provider, separated by spaces.',
  ),
  OIDC_USERNAME_CLAIM: setting(
    'identity',
    text,
    'preferred_username',
    'Claim that names the account; usernames of provisioned users are made from it.',
  ),
  OIDC_REQUIRED_CLAIM: setting(
    'identity',
    requiredClaim,
    '',
    '`name=value` that the claims of an account must contain at every sign-in, as a string or in a list of strings.',
  ),
  OIDC_AUTO_PROVISION: setting(
    'identity',
    flag,
    'false',
    'Whether an unknown account of the provider becomes a user at its first sign-in.',
  ),
  OIDC_DEFAULT_POLICY_IDS: setting('identity', list, '', 'Comma list of policies that such a user gets.'),
  OAUTH_CIMD_ENABLED: setting('identity', flag, 'true', 'Accept OAuth clients that a metadata document describes.'),
  OAUTH_CIMD_HOSTS: setting(
    'identity',
    list.pipe(z.array(z.string().regex(/^(\*|(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*)$/, 'must be *, host or *.suffix'))),
    '*',
    'Comma list of hosts of such documents: `*`, host, `*.suffix`.',
  ),
  OAUTH_REGISTRATION_ENABLED: setting('identity', flag, 'true', 'OAuth clients may register themselves.'),
  OAUTH_DEVICE_ENABLED: setting('identity', flag, 'true', 'Offer the OAuth device grant.'),
  OAUTH_CONSENT_URL: setting(
    'identity',
    address,
    '',
    'Page that asks for consent, of the origin of BASE_URL; default `BASE_URL/oauth/consent`.',
  ),
  OAUTH_ACCESS_TOKEN_TTL_SECONDS: setting('identity', integer(10, 86_400), '3600', 'Life of an OAuth access token.'),
  OAUTH_REFRESH_TOKEN_TTL_SECONDS: setting(
    'identity',
    integer(60, 31_536_000),
    '2592000',
    'Life of an OAuth refresh token; a grant ends when none was used for so long.',
  ),
  OAUTH_REFRESH_REUSE_GRACE_SECONDS: setting(
    'identity',
    integer(0, 300),
    '10',
    'How long a used refresh token is refused without ending its grant, for clients that race themselves; 0 = never.',
  ),
  OAUTH_GRANT_MAX_SECONDS: setting(
    'identity',
    integer(60, 315_360_000),
    '31536000',
    'Longest life of an OAuth grant; then the user consents again.',
  ),
  PROVIDER_AMBIENT_CREDENTIALS: setting(
    'identity',
    flag,
    'false',
    "bedrock and vertex may use the deployment's own credentials.",
  ),

  EGRESS_ALLOW_HOSTS: setting(
    'egress',
    text,
    '',
    'Comma list of host, host:port, *.suffix, IP or CIDR that may be reached although internal.',
  ),
  EGRESS_DNS_SERVERS: setting(
    'egress',
    text,
    '',
    "Comma list of name servers (IP or IP:port) that resolve callers' addresses; the system's when empty.",
  ),
  EGRESS_MAX_REDIRECTS: setting('egress', integer(0, 20), '5', 'Redirect hops of a webhook.'),
  // A longer call would be taken for lost where it has an Idempotency-Key.
  TOOL_CALL_TIMEOUT_MS: setting(
    'egress',
    integer(1000, 800_000),
    '300000',
    'One call of a tool, with redirects and everything that it calls in turn.',
  ),
  TOOL_MAX_RESPONSE_BYTES: setting(
    'egress',
    integer(1),
    '10485760',
    'Largest answer of a tool; a call may gather four times as much.',
  ),
  TOOL_MAX_REDIRECTS: setting('egress', integer(0, 20), '5', 'Redirect hops of a tool.'),
  GUARDRAIL_CONTEXT_TIMEOUT_MS: setting(
    'egress',
    integer(100, 60_000),
    '5000',
    'One call of the context tool of a guardrail.',
  ),
  GUARDRAIL_CONTEXT_TTL_MS: setting(
    'egress',
    integer(0, 3_600_000),
    '5000',
    'What a context tool answered a principal counts so long; 0 = it is asked each time.',
  ),
  PIPELINE_MAX_DEPTH: setting('egress', integer(1, 20), '5', 'How deep calls of tools by tools nest.'),
  SHARES_ALLOW_PUBLIC: setting(
    'egress',
    flag,
    'false',
    'Whether projects may share tools and agents with every other project at once.',
  ),

  WORKER_KINDS: setting(
    'workers',
    list.pipe(z.array(z.enum(WORKER_KINDS))),
    WORKER_KINDS.join(','),
    'Concerns a worker process runs when it is started without arguments.',
  ),
  WORKER_CONCURRENCY: setting('workers', integer(1, 1000), '10', 'Messages at once per queue and process.'),
  PROJECT_WORKER_SHARE: setting(
    'workers',
    fraction,
    '0.5',
    "Largest share of a worker's slots one project may hold while others wait.",
  ),
  WORKER_HEALTH_PORT: setting('workers', integer(0, 65535), '5048', 'Health port of a worker.'),
  WORKER_HEARTBEAT_INTERVAL_MS: setting('workers', integer(100), '5000', 'How often a worker writes its heartbeat.'),
  WORKER_HEARTBEAT_STALE_MS: setting(
    'workers',
    integer(500),
    '30000',
    'Age of a heartbeat at which a worker is not ready.',
  ),
  JOB_RETENTION_DAYS: setting('workers', integer(1), '7', 'Finished jobs are kept so long.'),
  CONVERSATION_SWEEP_SECONDS: setting(
    'workers',
    integer(1),
    '30',
    'Search for conversations with due turns and no message.',
  ),
  SESSION_SWEEP_SECONDS: setting('workers', integer(1), '60', 'Expiry sweep of sessions.'),
  GENERATION_LEASE_SECONDS: setting('workers', integer(2), '60', 'Lease of a turn, renewed every third of it.'),
  GENERATION_SWEEP_SECONDS: setting('workers', integer(1), '30', 'Search for turns without a message.'),
  GENERATION_MAX_SECONDS: setting('workers', integer(1), '1800', 'Running time of one segment of a turn.'),
  GENERATION_TOOL_CONCURRENCY: setting('workers', integer(1, 64), '8', 'Calls of one step of a turn at once.'),
  GENERATION_TOOL_RESULT_MAX_BYTES: setting(
    'workers',
    integer(1024),
    '1048576',
    'Largest result of a call that a turn keeps; a larger one is a failed call.',
  ),
  GENERATION_ACTION_TTL_SECONDS: setting(
    'workers',
    integer(0),
    '604800',
    'A turn that waits for its client this long fails; 0 is for ever.',
  ),
  DECISION_LEASE_SECONDS: setting(
    'workers',
    integer(2),
    '600',
    'Lease of a decision whose tool is called, renewed every quarter of it.',
  ),
  DECISION_SWEEP_INTERVAL_MS: setting('workers', integer(1000), '60000', 'Search for decisions that nobody works on.'),
  DATASET_MAX_ITEMS: setting('workers', integer(1, 1_000_000), '10000', 'Most items of a dataset.'),
  DATASET_MAX_BYTES: setting(
    'workers',
    integer(1024, 1_099_511_627_776),
    '268435456',
    'Most bytes that the items of a dataset take together: a run copies them in one transaction.',
  ),
  DATASET_IMPORT_MAX_BYTES: setting(
    'workers',
    integer(1024, 10_737_418_240),
    '104857600',
    'Largest file of items that a dataset takes at once.',
  ),
  EVAL_WORKER_BATCH: setting(
    'workers',
    positiveOr(5),
    '5',
    'Items of evals that a worker process has asked at once; 5 for what is no positive integer.',
  ),
  EVAL_WORKER_INTERVAL_MS: setting(
    'workers',
    positiveOr(5000),
    '5000',
    'Search for runs of evals that nobody works on; 5000 for what is no positive integer.',
  ),
  EVAL_TASK_LEASE_TTL_MS: setting(
    'workers',
    positiveOr(300_000),
    '300000',
    'Lease of an item of an eval; 300000 for what is no positive integer.',
  ),
  EVAL_RUN_ABANDONED_AFTER_MS: setting(
    'workers',
    positiveOr(1_800_000),
    '1800000',
    'A run of an eval that is quiet for so long and has no work left is ended; 1800000 for what is no positive integer.',
  ),
  EVAL_SYNC_ITEM_CAP: setting(
    'workers',
    positiveOr(25),
    '25',
    'Most items of a run of an eval that is waited for; 25 for what is no positive integer.',
  ),
  MEMORY_RULE_TIMEOUT_SECONDS: setting(
    'workers',
    integer(1),
    '120',
    'What decides the facts of one memory rule firing.',
  ),
  MAX_CONTINUATION_CHAIN_GENERATIONS: setting(
    'workers',
    positiveOr(100),
    '100',
    'Most turns of a chain, which carry on after one another; 100 for what is no positive integer.',
  ),
  MAX_ORCHESTRATION_RUN_DEPTH: setting(
    'workers',
    positiveOr(10),
    '10',
    'How deep runs of orchestrations may nest; 10 for what is no positive integer.',
  ),
  ORCHESTRATION_QUEUE_DRIVER: setting(
    'workers',
    text,
    'postgres',
    'Only `postgres`; with any other no run is started, and no worker of them.',
  ),
  ORCHESTRATION_WORKER_CONCURRENCY: setting('workers', positiveOr(10), '10', 'Attempts of nodes at once in a process.'),
  ORCHESTRATION_ADVANCE_CONCURRENCY: setting('workers', positiveOr(4), '4', 'Advances of runs at once in a process.'),
  ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES: setting(
    'workers',
    zeroOr(50),
    '50',
    'Attempts of nodes of one project at once in all processes; 0 for no limit.',
  ),
  ORCHESTRATION_NODE_LEASE_SECONDS: setting(
    'workers',
    positiveOr(60),
    '60',
    'Lease of an attempt of a node, renewed every third of it.',
  ),
  ORCHESTRATION_NODE_MAX_DELIVERIES: setting(
    'workers',
    positiveOr(5),
    '5',
    'Workers that one attempt of a node is given to, one after the other was lost.',
  ),
  ORCHESTRATION_NODE_TIMEOUT_MS: setting(
    'workers',
    positiveOr(600_000),
    '600000',
    'One attempt of a tool, poll, knowledge or memory_write node that has no timeout of its own.',
  ),
  ORCHESTRATION_RUN_MAX_STEPS: setting('workers', positiveOr(10_000), '10000', 'Attempts of nodes and polls of a run.'),
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: setting(
    'workers',
    positiveOr(5000),
    '5000',
    'Search for runs whose time has come and for attempts of lost workers.',
  ),
  ORCHESTRATION_SHUTDOWN_GRACE_MS: setting(
    'workers',
    positiveOrUnset,
    '',
    'SHUTDOWN_GRACE_MS of advances of runs and of attempts of nodes; unset: the same.',
  ),
  ORCHESTRATION_WORKER_HEARTBEAT_FILE: setting(
    'workers',
    optional,
    '',
    'File that a worker of runs writes after each successful look at its queues, for health checks without HTTP.',
  ),
  ORCHESTRATION_WORKER_HEARTBEAT_STALE_MS: setting(
    'workers',
    positiveOr(30_000),
    '30000',
    'Age of that file at which the worker is not ready.',
  ),
  ORCHESTRATION_WAIT_MAX_MS: setting('process', positiveOr(120_000), '120000', 'How long `wait` waits for a run.'),
  TRIGGER_WORKER_CONCURRENCY: setting('workers', positiveOr(10), '10', 'Firings of triggers at once per process.'),
  TRIGGER_SCHEDULER_INTERVAL_MS: setting(
    'workers',
    positiveOr(5000),
    '5000',
    'Search for schedules that are due, and for firings that nobody works on; at least so often.',
  ),
  TRIGGER_SCHEDULER_DISABLED: setting('workers', flag, 'false', 'Workers fire no schedules.'),
  TRIGGER_FIRING_LEASE_SECONDS: setting(
    'workers',
    positiveOr(60),
    '60',
    'Lease of a firing whose tool is called, renewed every quarter of it.',
  ),
  TRIGGER_FIRING_MAX_ATTEMPTS: setting(
    'workers',
    positiveOr(3),
    '3',
    'Workers that may be lost over one call of a tool by a trigger, each of which makes the call under the same key.',
  ),
  TRIGGER_FIRE_WAIT_MAX_MS: setting('workers', positiveOr(120_000), '120000', 'Longest wait of a manual fire.'),
  TRIGGER_HOOK_TOLERANCE_SECONDS: setting(
    'workers',
    positiveOr(300),
    '300',
    'How far the time of a signed hook may be off, before and after.',
  ),
  TRIGGER_MAX_CAUSATION_DEPTH: setting(
    'workers',
    positiveOr(5),
    '5',
    'Triggers that may have led to an event which fires another one.',
  ),
  EVENT_FANOUT_MAX: setting(
    'workers',
    positiveOr(10_000),
    '10000',
    'Firings of event triggers that one event, or one firing by hand, by clock or by a call, may lead to in all.',
  ),
  TRIGGER_MAX_PER_PROJECT: setting('workers', integer(1), '1000', 'Most triggers of a project.'),
  TRIGGER_EVENT_MAX_PER_PROJECT: setting(
    'workers',
    integer(1, 1000),
    '100',
    'Most event triggers of a project: each event is matched with all of them.',
  ),
  TRIGGER_FIRING_RETENTION_DAYS: setting('workers', integer(1), '30', 'Firings that have ended are kept so long.'),
  TASK_AUTOMATION_CHAIN_LIMIT: setting(
    'workers',
    positiveOr(50),
    '50',
    'Moves of a task that machines may make back-to-back; 50 for what is no positive integer.',
  ),
  TASK_APPROVAL_TTL_SECONDS: setting(
    'workers',
    positiveOr(86_400),
    '86400',
    'How long the approval of a transition of a task can be given.',
  ),
  TASK_WORKER_CONCURRENCY: setting('workers', positiveOr(10), '10', 'Dispatches of tasks at once per process.'),
  TASKS_SCHEDULER_INTERVAL_MS: setting(
    'workers',
    positiveOr(5000),
    '5000',
    'Search for tasks that have stalled, for dispatches that nobody works on and for steps of playbooks that have become overdue.',
  ),
  TASKS_DISPATCH_LEASE_SECONDS: setting(
    'workers',
    positiveOr(300),
    '300',
    'Lease of a call of a tool that a task made, renewed every quarter of it.',
  ),
  TASKS_DISPATCH_RECONCILE_GRACE_MS: setting(
    'workers',
    positiveOr(60_000),
    '60000',
    'How long what a task waits for is left alone before somebody looks whether it has settled without a word; then twice as long each time, at most an hour.',
  ),
  PLAYBOOK_EXPORT_TTL_DAYS: setting(
    'workers',
    zeroOr(30),
    '30',
    'Files of an export are removed after so long; 0 = never.',
  ),
  PLAYBOOK_EXPORT_LEASE_SECONDS: setting(
    'workers',
    positiveOr(300),
    '300',
    'Lease of an export that is built, renewed every quarter of it.',
  ),
  AGENT_MAX_STEPS_CEILING: setting('workers', integer(1), '200', 'Largest max_steps.'),
  AGENT_MAX_CALL_DEPTH: setting('workers', integer(0), '10', 'Default and maximum of max_call_depth.'),
  PROVIDER_MAX_RETRIES: setting('workers', integer(0, 10), '2', 'Retries of a model call without a model route.'),
  MODEL_CALL_TIMEOUT_MS: setting('workers', integer(100), '300000', 'One model call, first byte to last.'),
  MODEL_LISTING_TIMEOUT_MS: setting('workers', integer(100), '15000', 'One model listing.'),
  OLLAMA_BASE_URL: setting('workers', text, 'http://localhost:11434', 'Default endpoint of ollama providers.'),
  FAULT_POINTS: setting(
    'workers',
    optional,
    '',
    'Faults for tests, `point=kill` or `point=freeze:<ms>`; boot failure in production.',
  ),

  EVENT_DATA_MAX_BYTES: setting(
    'control',
    integer(0),
    '0',
    'Larger event data is cut to its scalar fields; 0 = no bound.',
  ),
  EVENT_RETENTION_DAYS: setting('control', integer(1), '30', 'Events are kept so long.'),
  WEBHOOK_TIMEOUT_MS: setting('control', integer(100), '10000', 'One attempt, redirects included.'),
  WEBHOOK_LEASE_MS: setting(
    'control',
    integer(200),
    '60000',
    'Lease of an attempt; above the time-out or the boot fails.',
  ),
  APPROVAL_SWEEP_INTERVAL_MS: setting(
    'control',
    integer(1000),
    '60000',
    'Search for approvals whose time is over, and for what follows from resolved ones.',
  ),
  WEBHOOK_SWEEP_INTERVAL_MS: setting(
    'control',
    integer(100),
    '5000',
    'Search for due deliveries without a live lease.',
  ),
  // Above 5,000 one event would not fit into one transaction of the dispatcher.
  WEBHOOK_MAX_PER_PROJECT: setting('control', integer(1, 5000), '100', 'Most webhooks of a project.'),
  FORMATION_RESOURCE_TYPES_CONFIG: setting(
    'formations',
    optional,
    '',
    'JSON file of the types of resources that handlers of the operator make; read when a process starts.',
  ),
  FORMATION_DEPLOY_TIMEOUT_MS: setting(
    'formations',
    integer(1000),
    '600000',
    'How long a request waits for a deploy, which then continues in the background.',
  ),
  FORMATION_FORCE_CONFLICTS: setting(
    'formations',
    flag,
    'true',
    'Deploys overwrite what others have changed since the last one, unless they say otherwise.',
  ),
  WEBHOOK_DELIVERY_RETENTION_DAYS: setting('control', integer(1), '30', 'Finished deliveries are kept so long.'),
  WEBHOOK_AUTO_DISABLE: setting(
    'control',
    flag,
    'true',
    'Disable a webhook after 100 failed deliveries in a row over a day.',
  ),
  GUARDRAIL_EVALUATION_RETENTION_DAYS: setting(
    'control',
    integer(0),
    '90',
    'What guardrails said of single calls is kept so long; 0 = for ever.',
  ),
  USAGE_REQUEST_FLUSH_INTERVAL_MS: setting(
    'control',
    integer(10, 86_400_000),
    '60000',
    'Counted requests of keys are written as usage so often; a process that is killed loses those since.',
  ),
  USAGE_REQUEST_METERING_DISABLED: setting('control', flag, 'false', 'Requests of keys are not metered.'),
  AUDIT_RETENTION_DAYS: setting('control', integer(0), '365', 'Audit entries are kept so long; 0 = for ever.'),
  AUDIT_QUEUE_MAX_SIZE: setting(
    'control',
    integer(1),
    '1000',
    'Buffered audit entries of reads; above it they are dropped and counted.',
  ),
  ACTIVITY_RETENTION_DAYS: setting(
    'control',
    integer(0),
    '0',
    'Entries of the activity feed are kept so long; 0 = for ever.',
  ),
  CONTENT_RETENTION_SWEEP_INTERVAL_MS: setting(
    'control',
    integer(1000),
    '86400000',
    'Erasure and deletion of what is older than the retention of its project: trace_content_retention_days, trace_retention_days, conversation_retention_days.',
  ),
  CONTENT_RETENTION_SWEEP_DISABLED: setting(
    'control',
    flag,
    'false',
    'Nothing is erased or deleted by the retention of its project.',
  ),
  AUDIT_RETENTION_SWEEP_DISABLED: setting('control', flag, 'false', 'No daily deletion of audit entries.'),
  FILES_STORAGE_PROVIDER: setting(
    'content',
    text,
    'postgres',
    'Where new bytes go: postgres, local or s3; files keep the backend they were written to.',
  ),
  FILES_STORAGE_DIR: setting('content', optional, '', 'Directory of the local backend.'),
  FILES_S3_BUCKET: setting('content', optional, '', 'Bucket of the s3 backend.'),
  FILES_S3_REGION: setting('content', optional, process.env.AWS_REGION ?? '', 'Its region; AWS_REGION is its default.'),
  FILES_S3_KEY_PREFIX: setting('content', text, '', 'Start of every object key.'),
  FILES_S3_ENDPOINT: setting('content', optional, '', 'Address of an S3-compatible store.'),
  FILES_S3_FORCE_PATH_STYLE: setting(
    'content',
    flag,
    'false',
    'The bucket goes into the path instead of the host name.',
  ),
  FILES_S3_IDLE_TIMEOUT_MS: setting(
    'content',
    integer(100),
    '30000',
    'Longest silence of the store within a request; the request is then made again, three times in all. A download whose client reads nothing for as long ends too.',
  ),
  FILES_MAX_UPLOAD_BYTES: setting('content', integer(1), '104857600', 'Largest file; above it REQUEST_REJECTED 413.'),
  // Bytes that were staged an hour ago count as lost.
  UPLOAD_TIMEOUT_MS: setting(
    'content',
    integer(100, 3_300_000),
    '3000000',
    'Longest time that an upload takes to arrive; then 408.',
  ),
  FILES_INLINE_MAX_BYTES: setting(
    'content',
    integer(1, 300_000_000),
    '26214400',
    'Largest file in a JSON body or answer, and in a converter call, before base64.',
  ),
  FILES_MEMORY_BYTES: setting(
    'content',
    integer(1_048_576),
    '268435456',
    'Memory of a process for files that models and converters are sent, six times their bytes; others wait for their turn.',
  ),
  FILE_BLOB_CHUNK_BYTES: setting('content', integer(1024, 16_777_216), '262144', 'Chunk of the postgres backend.'),
  UPLOAD_TOKEN_TTL_SECONDS: setting('content', integer(60, 3600), '900', 'Default life of an upload token.'),
  FILE_DOWNLOAD_TOKEN_TTL_SECONDS: setting(
    'content',
    integer(1),
    '600',
    'Life of a download address that a converter is given.',
  ),
  DOCUMENT_CONTENT_MAX_BYTES: setting(
    'content',
    integer(1, 50_000_000),
    '5242880',
    'Largest inline text of a document.',
  ),
  SYNC_INGESTION_MAX_BYTES: setting(
    'content',
    z
      .string()
      .transform(value => (Number.isSafeInteger(Number(value)) && Number(value) > 0 ? Number(value) : 10_485_760)),
    '10485760',
    'Largest file that is ingested with `wait=true`; a value that is no positive integer is taken as the default.',
  ),
  INGESTION_MAX_TRIES: setting('content', integer(1, 10), '3', 'Tries of an ingestion whose failure has no name.'),
  INGESTION_LEASE_SECONDS: setting('content', integer(2), '60', 'Lease of an ingestion, renewed every quarter of it.'),
  INGESTION_STALL_TIMEOUT_MS: setting(
    'content',
    integer(1000),
    '300000',
    'Silence after which an ingestion has failed.',
  ),
  INGESTION_QUEUE_TIMEOUT_MS: setting(
    'content',
    integer(1000),
    '3600000',
    'Longest wait of an ingestion for a worker.',
  ),
  CONVERSION_STALL_TIMEOUT_MS: setting('content', integer(1000), '1800000', "Longest wait for a converter's callback."),
  CONVERTER_TIMEOUT_MS: setting('content', integer(100), '120000', 'One call of a converter.'),
  INGESTION_MAX_TEXT_BYTES: setting(
    'content',
    integer(1, 200_000_000),
    '52428800',
    'Most text of one document; its chunks, whose overlaps repeat text, hold at most twice as much together.',
  ),
  INGESTION_PDF_PROCESSES: setting(
    'content',
    integer(1, 100),
    '2',
    'PDFs that one worker reads at once, each in a process of up to 512 MiB; others wait for their turn.',
  ),
  INGESTION_MAX_PAGES: setting(
    'content',
    integer(1),
    '5000',
    'Most pages of one PDF, and of what a converter answers.',
  ),
  INGESTION_MAX_CHUNKS: setting('content', integer(1), '20000', 'Most chunks of one document.'),
  EMBEDDING_PROVIDER: setting(
    'content',
    z.enum(['', 'openai', 'ollama', 'bedrock', 'local']).transform(value => (value === '' ? null : value)),
    '',
    'openai, ollama, bedrock or local; unset: no vectors, search is lexical.',
  ),
  EMBEDDING_MODEL: setting('content', optional, '', 'Its model; `local-hash-v1` for local.'),
  EMBEDDING_DIMENSIONS: setting('content', integer(32, 4096), '1024', 'Length of a vector; the model has to agree.'),
  EMBEDDING_API_KEY: setting(
    'content',
    optional,
    '',
    'Key of the provider; OPENAI_API_KEY is its default for openai.',
    {
      secret: true,
    },
  ),
  EMBEDDING_BASE_URL: setting('content', optional, '', 'OpenAI-compatible endpoint instead of the vendor.'),
  EMBEDDING_REGION: setting('content', optional, '', 'Region for bedrock; then AWS_REGION, then us-east-1.'),
  EMBEDDING_BATCH_SIZE: setting('content', integer(1, 2048), '64', 'Most texts in one call of the provider.'),
  EMBEDDING_CONCURRENCY: setting('content', integer(1, 100), '5', 'Calls of the provider at once, per process.'),
  EMBEDDING_TIMEOUT_MS: setting('content', integer(100), '30000', 'One call of the provider.'),
  EMBEDDING_INLINE_TIMEOUT_MS: setting(
    'content',
    integer(0),
    '5000',
    'How long a write of a document waits for its vectors; the rest is left to a worker.',
  ),
  EMBEDDING_MAX_INPUT_CHARS: setting('content', integer(500, 32_000), '8000', 'Characters that one vector stands for.'),
  EMBEDDING_INPUT_1M_TOKEN_PRICE_USD: setting('content', number(0, 1e6), '0', 'Price of a million embedded tokens.'),
  KNOWLEDGE_VECTOR_INDEX: setting(
    'content',
    z.enum(['auto', 'scan', 'pgvector']),
    'auto',
    'auto uses pgvector where it is installed; pgvector demands it; scan never does.',
  ),
  KNOWLEDGE_CODE_CACHE_BYTES: setting(
    'content',
    integer(0),
    '67108864',
    'Memory of each process for the codes of projects that are searched again and again, and for vectors read lately; 0 = none.',
  ),
  KNOWLEDGE_CANDIDATE_FACTOR: setting(
    'content',
    integer(1, 1000),
    '40',
    'Candidates of the vector scan per result asked for.',
  ),
  KNOWLEDGE_RRF_K: setting('content', number(0.001, 1000), '60', 'Constant of reciprocal rank fusion.'),
  KNOWLEDGE_RECENCY_HALF_LIFE_DAYS: setting(
    'content',
    number(0, 36_500),
    '0',
    'Half-life of memories in the ranking; 0 = off.',
  ),
  KNOWLEDGE_TEXT_SEARCH_CONFIG: setting('content', text, 'simple', 'Text search configuration of PostgreSQL.'),
  KNOWLEDGE_QUERY_TIMEOUT_MS: setting('content', integer(10), '5000', 'One channel of a search.'),
  KNOWLEDGE_EMBED_TIMEOUT_MS: setting('content', integer(10), '5000', 'Embedding of a query.'),
  KNOWLEDGE_INJECTION_MAX_CHARS: setting(
    'content',
    integer(1000),
    '20000',
    'Characters of what an agent knows that one turn is given.',
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
  /** True when BASE_URL was given rather than derived from PORT. */
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

/** Settings that cannot be used, each with a line of the message. `variable` names the first. */
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

/** Defaults as the table shows them: those that follow the machine's environment without it. */
const shownDefaults: Record<string, string> = {
  INSTANCE_ID: '',
  DATABASE_HOST: 'localhost',
  DATABASE_PORT: '5432',
  DATABASE_NAME: 'app',
  DATABASE_USER: 'app',
  DATABASE_PASSWORD: '',
}

/** The settings as rows, for docs/operations.md and `muster doctor`. */
export const settingRows = () =>
  Object.entries(settings as Record<string, Setting<unknown>>).map(([name, entry]) => ({
    name,
    group: entry.group,
    default: shownDefaults[name] ?? entry.default ?? '',
    required_in_production: entry.production === true,
    secret: entry.secret === true,
    meaning: entry.doc,
  }))

/**
 * Parses an environment into the configuration.
 * @throws ConfigError naming every variable that is missing or invalid.
 */
export function loadConfig(env: Record<string, string | undefined> = process.env): Config {
  const parsed: Record<string, unknown> = {}
  const production = env.NODE_ENV === 'production'
  const problems: SettingProblem[] = []
  const wrong = (variable: string, message: string) => problems.push({ variable, message })
  for (const [name, entry] of Object.entries(settings as Record<string, Setting<unknown>>)) {
    const given = env[name]
    const result = entry.schema.safeParse(given === undefined || given === '' ? (entry.default ?? '') : given)
    if (production && entry.production && !given) wrong(name, 'is required in production')
    else if (!result.success) wrong(name, result.error.issues[0].message)
    else parsed[name] = result.data
  }
  const config = parsed as unknown as Config
  config.production = production
  config.baseUrlGiven = config.BASE_URL !== null && config.BASE_URL !== undefined
  config.BASE_URL = (config.BASE_URL ?? `http://localhost:${config.PORT}`).replace(/\/+$/, '')
  if (config.baseUrlGiven && !URL.canParse(config.BASE_URL)) wrong('BASE_URL', 'must be an absolute URL')
  config.DOCS_BASE_URL = (config.DOCS_BASE_URL ?? `${config.BASE_URL}/docs`).replace(/\/+$/, '')
  if (env.DOCS_BASE_URL && !URL.canParse(config.DOCS_BASE_URL)) wrong('DOCS_BASE_URL', 'must be an absolute URL')
  config.OAUTH_CONSENT_URL = config.OAUTH_CONSENT_URL ?? `${config.BASE_URL}/oauth/consent`
  if (URL.parse(config.OAUTH_CONSENT_URL)?.origin !== URL.parse(config.BASE_URL)?.origin)
    wrong('OAUTH_CONSENT_URL', 'must have the origin of BASE_URL')
  config.TOOL_CONTEXT_HEADER_PREFIX = config.TOOL_CONTEXT_HEADER_PREFIX ?? `${config.HEADER_PREFIX}Context-`
  if (!/^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/.test(config.TOOL_CONTEXT_HEADER_PREFIX))
    wrong('TOOL_CONTEXT_HEADER_PREFIX', 'must be header-name characters')
  config.INSTANCE_ID = config.INSTANCE_ID ?? `${hostname()}-${randomBytes(4).toString('hex')}`
  if (production && typeof config.JWT_SECRET === 'string' && Buffer.byteLength(config.JWT_SECRET) < 32)
    wrong('JWT_SECRET', 'must be at least 32 bytes in production')
  config.JWT_SECRET = config.JWT_SECRET ?? randomBytes(32).toString('base64url')
  if (production && config.OIDC_ISSUER?.startsWith('http:'))
    wrong('OIDC_ISSUER', 'must be an https address in production')
  if (production && config.FAULT_POINTS) wrong('FAULT_POINTS', 'must not be set in production')
  if (config.WEBHOOK_LEASE_MS <= config.WEBHOOK_TIMEOUT_MS)
    wrong('WEBHOOK_LEASE_MS', 'must be above WEBHOOK_TIMEOUT_MS')
  if (config.SECRETS_ENCRYPTION_KEY?.length > 1)
    wrong('SECRETS_ENCRYPTION_KEY', 'must be one key; older ones go into SECRETS_ENCRYPTION_KEY_PREVIOUS')
  const [first, ...others] = problems
  if (first) throw new ConfigError(first.variable, first.message, others)
  config.DATABASE_URL ??= databaseUrl(config)
  config.DATABASE_LISTEN_URL ??= config.DATABASE_URL
  return config
}

/** The address made of the five DATABASE_ settings. */
function databaseUrl(config: Config): string {
  const url = new URL(
    `postgres://${config.DATABASE_HOST}:${config.DATABASE_PORT}/${encodeURIComponent(config.DATABASE_NAME)}`,
  )
  url.username = config.DATABASE_USER
  if (config.DATABASE_PASSWORD) url.password = config.DATABASE_PASSWORD
  return url.href
}
