import type { ErrorCode } from './generated/codes.ts'

export type { ErrorCode } from './generated/codes.ts'

/** Details of errors whose fields are known, by code. */
export interface ErrorMeta {
  API_KEY_PROJECT_SCOPE: { scoped_project: string; requested_project: string }
  QUOTA_EXCEEDED: { quota_id: string; metric: string; window: string; limit: number }
  QUOTA_STORAGE_EXCEEDED: { quota_id: string; current_bytes: number; limit: number }
  VALIDATION_FAILED: { problems: { code: string; path: string; message: string }[] }
}

export type ErrorFields = {
  code: string
  message: string
  hint: string
  docs_url: string
  meta?: Record<string, unknown>
}

type Received = { status: number; requestId: string | null; retryAfter: number | null }

/** A refusal of the service. */
export class MusterError extends Error {
  override readonly name: string = 'MusterError'
  /** Stable code: a code of the catalogue, or of a newer server. */
  readonly code: ErrorCode | (string & {})
  readonly status: number
  /** What to do. */
  readonly hint: string
  readonly docsUrl: string
  /** Details; the fields depend on the code. */
  readonly meta: Record<string, unknown>
  /** ID of the request in the logs of the service. */
  readonly requestId: string | null
  /** Seconds after which the request may be repeated. */
  readonly retryAfter: number | null

  constructor({ code, message, hint, docs_url, meta }: ErrorFields, { status, requestId, retryAfter }: Received) {
    super(message)
    this.code = code
    this.status = status
    this.hint = hint
    this.docsUrl = docs_url
    this.meta = meta ?? {}
    this.requestId = requestId
    this.retryAfter = retryAfter
  }

  toJSON(): object {
    return Object.assign({ message: this.message }, this)
  }
}

/** 401: no credential, or an invalid one. */
export class Unauthenticated extends MusterError {
  override readonly name = 'Unauthenticated'
}
/** 403: the credential lacks a permission. */
export class Forbidden extends MusterError {
  override readonly name = 'Forbidden'
}
/** 404 or 410. */
export class NotFound extends MusterError {
  override readonly name = 'NotFound'
}
/** 409 or 412: the current state does not allow the request. */
export class Conflict extends MusterError {
  override readonly name = 'Conflict'
}
/** 400, 413, 415 or 422: the request itself is invalid. */
export class Invalid extends MusterError {
  override readonly name = 'Invalid'
}
/** 429: a rate or a quota is exhausted. */
export class LimitExceeded extends MusterError {
  override readonly name = 'LimitExceeded'
}
/** 5xx with an error of the service. */
export class ServerFailure extends MusterError {
  override readonly name = 'ServerFailure'
}

const CLASSES: Record<number, typeof MusterError> = {
  400: Invalid,
  401: Unauthenticated,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  410: NotFound,
  412: Conflict,
  413: Invalid,
  415: Invalid,
  422: Invalid,
  429: LimitExceeded,
}

/** Returns the error of a refusal, of the class of its status. */
export function errorOf(fields: ErrorFields, received: Received): MusterError {
  const Class = CLASSES[received.status] ?? (received.status >= 500 ? ServerFailure : MusterError)
  return new Class(fields, received)
}

/** Whether an error is a refusal of the service, with a code where one is given. Narrows `meta` where its fields are known. */
export function isMusterError<Code extends ErrorCode>(
  error: unknown,
  code: Code,
): error is MusterError & { code: Code; meta: Code extends keyof ErrorMeta ? ErrorMeta[Code] : Record<string, unknown> }
export function isMusterError(error: unknown, code?: string): error is MusterError
export function isMusterError(error: unknown, code?: string): error is MusterError {
  return error instanceof MusterError && (code === undefined || error.code === code)
}

/**
 * - `network`: no connection, or a connection that was lost
 * - `timeout`: no answer in time
 * - `broken`: an answer that is no answer of the service, or ends early
 * - `type`: an answer of another content type than the operation has
 * - `too_large`: an answer or a message of a stream over its limit
 * - `redirect`: a redirect to another origin, or too many
 */
export type NoAnswerReason = 'network' | 'timeout' | 'broken' | 'type' | 'too_large' | 'redirect'

/** The service gave no usable answer; whether it executed the request is unknown. */
export class NoAnswer extends Error {
  override readonly name = 'NoAnswer'
  readonly reason: NoAnswerReason
  /** Status of a broken answer. */
  readonly status: number | null

  constructor(reason: NoAnswerReason, message: string, status: number | null = null) {
    super(message)
    this.reason = reason
    this.status = status
  }
}

/** The work ended in failure, or was cancelled. */
export class WorkFailed<Record = unknown> extends Error {
  override readonly name = 'WorkFailed'
  /** Code of the failure; null where the work has none. */
  readonly code: string | null
  /** Record of the work, or data of the event, with the failure. */
  readonly record: Record

  constructor(record: Record, message: string, code: string | null = null) {
    super(message)
    this.code = code
    this.record = record
  }
}

/** The work waits for an input. */
export class WorkWaits<Record = unknown> extends Error {
  override readonly name = 'WorkWaits'
  /** Record of the work, with the input that it waits for. */
  readonly record: Record

  constructor(record: Record, message: string) {
    super(message)
    this.record = record
  }
}
