import pino, { type DestinationStream, type Logger } from 'pino'

export type { Logger } from 'pino'

/** Keys whose values never reach a log line. */
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
 * The object of a log line with the values of secret keys hidden. One shallow walk: pino's own redaction compiles a
 * path per key and level and took 5 % of a request.
 */
function redacted(object: Record<string, unknown>, depth = 0): Record<string, unknown> {
  let out = object
  for (const key in object) {
    const value = object[key]
    let shown = value
    if (value !== undefined && value !== null && SECRET_KEYS.has(key)) shown = '[redacted]'
    else if (typeof value === 'object' && value !== null && !(value instanceof Error) && depth < MAX_DEPTH)
      shown = redacted(value as Record<string, unknown>, depth + 1)
    if (shown === value) continue
    if (out === object)
      out = Array.isArray(object) ? ([...object] as unknown as Record<string, unknown>) : { ...object }
    out[key] = shown
  }
  return out
}

/** The form of credentials, to hide those that turn up where none belongs: in a path, in a message. */
const CREDENTIAL = /\b(sk[_-]|whsec_|ort_|upt_|rcb_|eyJ)[\w.-]{8,}/g

export const redactCredentials = (text: string): string => text.replace(CREDENTIAL, '$1[redacted]')

/** A request's path as a log line shows it: without its query, and without credentials. */
export const redactedPath = (url: string): string => redactCredentials(url.split('?', 1)[0])

/**
 * What is shown of an error. Errors of the database hold rows, errors of model calls hold requests and answers: of
 * their own fields only those are shown that name a cause.
 */
const SHOWN = ['type', 'message', 'stack', 'code', 'constraint', 'table'] as const

function shownError(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  const all = pino.stdSerializers.err(error) as Record<string, unknown>
  return Object.fromEntries(
    SHOWN.filter(name => all[name] !== undefined).map(name => [
      name,
      typeof all[name] === 'string' ? redactCredentials(all[name]) : all[name],
    ]),
  )
}

/**
 * The process log: JSON lines on stdout, one line per request and one per attempt of anything. Bodies and credentials
 * are never logged; the redaction is the second line of defence.
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
      formatters: { level: label => ({ level: label }), log: object => redacted(object) },
      serializers: { err: shownError, error: shownError },
    },
    options.destination ?? pino.destination({ fd: 1, sync: false }),
  )
}

/** A log that keeps quiet, for programs that print something else. */
export const silentLog = (): Logger => pino({ level: 'silent' })
