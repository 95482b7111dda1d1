import pino, { type DestinationStream, type Logger } from 'pino'

export type { Logger } from 'pino'

/** Keys whose values never reach a log line, wherever they stand in the logged object. */
const SECRET_KEYS = [
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
  'JWT_SECRET',
]

const redactPaths = SECRET_KEYS.flatMap(key => [key, `*.${key}`, `*.*.${key}`])

/**
 * The process log: JSON lines on stdout, one line per request and one per attempt of anything.
 * Bodies and credentials are never logged; the redaction is the second line of defence.
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
      formatters: { level: label => ({ level: label }) },
      redact: { paths: redactPaths, censor: '[redacted]' },
      serializers: { err: pino.stdSerializers.err, error: pino.stdSerializers.err },
    },
    options.destination ?? pino.destination({ fd: 1, sync: false }),
  )
}

/** A log that keeps quiet, for programs that print something else. */
export const silentLog = (): Logger => pino({ level: 'silent' })
