import type { MusterError, NoAnswer } from '@muster/client'

/** Exit codes of API commands. */
export const EXIT = {
  done: 0,
  failed: 1,
  usage: 2,
  signedOut: 3,
  forbidden: 4,
  missing: 5,
  conflict: 6,
  invalid: 7,
  limit: 8,
  server: 9,
  noAnswer: 10,
  workFailed: 11,
  workWaits: 12,
  timeout: 13,
  interrupted: 130,
  terminated: 143,
} as const

/** A command that ends with a message and an exit code. */
export class Failure extends Error {
  readonly exitCode: number
  /** What to do. */
  readonly hint?: string
  constructor(message: string, exitCode: number = EXIT.failed, hint?: string) {
    super(message)
    this.exitCode = exitCode
    this.hint = hint
  }
}

/** Wrong usage, found before any request. */
export class UsageError extends Failure {
  constructor(message: string, hint?: string) {
    super(message, EXIT.usage, hint)
  }
}

const BY_STATUS: Record<number, number> = {
  400: EXIT.invalid,
  401: EXIT.signedOut,
  403: EXIT.forbidden,
  404: EXIT.missing,
  408: EXIT.noAnswer,
  409: EXIT.conflict,
  410: EXIT.missing,
  412: EXIT.conflict,
  413: EXIT.invalid,
  415: EXIT.invalid,
  422: EXIT.invalid,
  429: EXIT.limit,
  503: EXIT.noAnswer,
}

/** Returns the exit code of an error of the service. */
export function exitCodeOf(code: string, status: number): number {
  if (/_NOT_FOUND$/.test(code)) return EXIT.missing
  if (status === 409 && code.startsWith('QUOTA_')) return EXIT.limit
  return BY_STATUS[status] ?? (status >= 500 ? EXIT.server : EXIT.failed)
}

// By name, so that completion does not load the client.
export const isRefusal = (error: unknown): error is MusterError =>
  error instanceof Error && 'docsUrl' in error && 'status' in error
export const isNoAnswer = (error: unknown): error is NoAnswer => error instanceof Error && error.name === 'NoAnswer'
