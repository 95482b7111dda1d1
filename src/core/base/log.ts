import pino, { type DestinationStream, type Logger } from 'pino'

export type { Logger } from 'pino'

/** Keys whose values are never logged. */
const SECRET_KEYS = new Set([
  'authorization',
  'cookie',
  'password',
  'new_password',
  'current_password',
  'secret',
  'key',
  'token',
  'value',
  'api_key',
  'apiKey',
  'ADMIN_PASSWORD',
  'DATABASE_URL',
  'DATABASE_LISTEN_URL',
  'JWT_SECRET',
])

const MAX_DEPTH = 4

/**
 * Returns the object of a log line with secret values redacted. A plain walk, because pino's redaction, which compiles a path
 * per key and level, took 5 % of a request.
 */
function redact(object: Record<string, unknown>, depth = 0): Record<string, unknown> {
  let out = object
  for (const key in object) {
    const value = object[key]
    let logged = value
    if (value !== undefined && value !== null && SECRET_KEYS.has(key)) logged = '[redacted]'
    else if (typeof value === 'object' && value !== null && !(value instanceof Error) && depth < MAX_DEPTH)
      logged = redact(value as Record<string, unknown>, depth + 1)
    if (logged === value) continue
    if (out === object)
      out = Array.isArray(object) ? ([...object] as unknown as Record<string, unknown>) : { ...object }
    out[key] = logged
  }
  return out
}

/** Pattern of credentials, to redact them in paths and messages. */
const CREDENTIAL = /\b(sk[_-]|stk_|whsec_|ort_|upt_|rcb_|eyJ)[\w.-]{8,}/g

export const redactCredentials = (text: string): string => text.replace(CREDENTIAL, '$1[redacted]')

/** Maximum length of a path in a log line; requests may have paths of 16 KiB. */
const MAX_PATH = 512

/** Returns the path of a request for the log, without its query and credentials, truncated to MAX_PATH characters. */
export function redactedPath(url: string): string {
  const path = redactCredentials(url.split('?', 1)[0])
  return path.length > MAX_PATH ? `${path.slice(0, MAX_PATH)}…` : path
}

/** Logged fields of an error. Others may contain content: rows in database errors, requests and responses in model errors. */
const ERROR_FIELDS = ['type', 'message', 'stack', 'code', 'constraint', 'table'] as const

function serializeError(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  const all = pino.stdSerializers.err(error) as Record<string, unknown>
  return Object.fromEntries(
    ERROR_FIELDS.filter(name => all[name] !== undefined).map(name => [
      name,
      typeof all[name] === 'string' ? redactCredentials(all[name]) : all[name],
    ]),
  )
}

/**
 * Creates the process log: JSON lines on stdout, one per request and one per attempt of work. Bodies and credentials are
 * never logged; the redaction is only a safeguard.
 */
export function createLog(options: {
  level: string
  base?: Record<string, unknown>
  destination?: DestinationStream
}): Logger {
  return pino(
    {
      level: options.level,
      base: options.base ?? {},
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: label => ({ level: label }), log: object => redact(object) },
      serializers: { err: serializeError, error: serializeError },
    },
    options.destination ?? pino.destination({ fd: 1, sync: false }),
  )
}

/** Returns a logger without output, for programs with other output. */
export const silentLog = (): Logger => pino({ level: 'silent' })
