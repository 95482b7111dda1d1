import { z } from 'zod'
import { declarations } from './declarations.ts'

/**
 * An error code: status, meaning, remedy, and the default message, in which `{name}` is replaced by the field of that name
 * in the occurrence's meta.
 */
export type ErrorEntry = { status: number; description: string; message?: string; hint?: string }

export type ErrorTable = Record<string, ErrorEntry>

/** The codes of a table, as a type. */
export type CodesOf<T> = { [Code in keyof T]: true }

/** Errors of the request pipeline, and errors shared by all modules. */
export const coreErrors = {
  API_KEY_PROJECT_SCOPE: {
    status: 403,
    description: 'Project-bound credential targets another project',
    message: 'The credential is bound to project {scoped_project} and cannot act in project {requested_project}',
  },
  CELL_UNAVAILABLE: {
    status: 503,
    description: 'The database with the requested records, one of several of the deployment, is not available',
    message: 'Cell {cell} is not available',
    hint: 'Retry after the time in Retry-After; records of other cells are not affected.',
  },
  FORBIDDEN: { status: 403, description: 'Not permitted', message: 'Forbidden' },
  IDEMPOTENCY_IN_PROGRESS: {
    status: 409,
    description: 'Request repeated while the first request is in progress',
    message: 'The first request with this Idempotency-Key is still in progress',
    hint: 'Wait for the time in Retry-After, then repeat the request with the same key.',
  },
  IDEMPOTENCY_LIMIT_EXCEEDED: {
    status: 429,
    description: 'Responses stored for the Idempotency-Keys of a credential or project take too many bytes',
    message: 'Responses stored for the Idempotency-Keys of the last hour exceed {limit} bytes',
    hint: 'Send fewer requests with an Idempotency-Key, or repeat the request after the time in Retry-After.',
  },
  IDEMPOTENCY_KEY_REUSED: {
    status: 409,
    description: 'Idempotency-Key reused with a different body',
    message: 'The Idempotency-Key was already used with a different body',
    hint: 'Repeat the first request unchanged, or send a new Idempotency-Key.',
  },
  EXECUTOR_LOST: {
    status: 500,
    description: 'Work was abandoned because its workers were lost; a turn has GENERATION_FAILED with the same reason',
    message: 'The work was abandoned after its workers were lost',
  },
  INTERNAL_ERROR: { status: 500, description: 'Unhandled failure', message: 'Internal Server Error' },
  INVALID_TOOL_CONTEXT_KEY: {
    status: 400,
    description:
      "Tool_context key unusable as a header name (letters, digits and the characters !#$%&'*+-.^_|~ only; no two keys mapping to the same case-insensitive header)",
  },
  NAME_CONFLICT: {
    status: 409,
    description: 'Name already used in the project',
    message: 'The {field} {name} is already in use',
    hint: 'Choose another name or path, or rename or delete the existing resource.',
  },
  NOT_IMPLEMENTED: { status: 501, description: 'Option not implemented' },
  PRECONDITION_FAILED: {
    status: 412,
    description: 'If-Match no longer matches',
    message: 'The resource has changed since it was read',
  },
  REQUEST_REJECTED: {
    status: 400,
    description: 'Rejected by HTTP layer',
    hint: 'Check the method, size, encoding and range of the request.',
  },
  RESOURCE_NOT_FOUND: {
    status: 404,
    description: 'Resource missing or invisible to the credential, such as a resource of another project',
    message: 'Resource {id} not found',
  },
  SECRET_NOT_DECRYPTABLE: {
    status: 500,
    description:
      'Stored trigger or webhook secret undecryptable after the encryption key changed; rotate the secret or restore the key',
    message: 'The secret of {id} cannot be decrypted',
  },
  SERVICE_NOT_READY: {
    status: 503,
    description: 'A readiness check fails or the process is draining',
    message: 'The service is not ready',
    hint: 'Retry later; meta.checks contains the failed checks.',
  },
  UNAUTHORIZED: { status: 401, description: 'Authentication required or token invalid', message: 'Unauthorized' },
  VALIDATION_FAILED: {
    status: 400,
    description: 'Body failed validation (also pagination, status filter and time-range errors)',
    hint: 'Correct the fields listed in meta.problems.',
  },
  VERSION_CONFLICT: {
    status: 409,
    description: 'Stale expected_version in a body',
    message: 'The resource is at version {current_version}, not at expected_version {expected_version}',
    hint: 'Get the resource again and send its version as expected_version.',
  },
  WORKER_LOST: {
    status: 500,
    description: 'Work that ended its workers repeatedly, the last time while nothing else ran in the process',
    message: 'The work was abandoned after it had ended its workers',
    hint: 'Check the input of the work, which may exhaust a worker, and the exceptions of the project.',
  },
} as const satisfies ErrorTable

/**
 * All error codes. Each module adds the codes of its table, so that an undeclared code does not compile. Append-only: the
 * name and status of a code never change.
 */
export interface ErrorCodes extends CodesOf<typeof coreErrors> {}

export type ErrorCode = keyof ErrorCodes

/** The error catalogue, served at /errors.json, in x-error-codes and in the error reference. */
export const errorTable = declarations<ErrorEntry & { code: string }>('error code', ({ code }) => code)

const classHints: Record<number, string> = {
  400: 'Correct the body, parameters or IDs of the request; see meta for the field.',
  401: 'Send a valid user token or project key as a bearer credential.',
  403: 'Use a credential that allows the action in this project.',
  404: 'Check the ID and whether the credential has access to its project.',
  409: 'Get the resource again; its current state does not allow the request.',
  410: 'Do not retry; the resource was permanently removed.',
  412: 'Get the resource again and repeat the request with its new ETag.',
  413: 'Send a smaller payload.',
  422: 'See meta for the reason why the request failed.',
  429: 'Repeat the request after the time in Retry-After.',
  500: 'Retry with backoff; the server log contains details under the request ID.',
  501: 'Omit the option; this deployment does not support it.',
  502: 'See meta for the response of the upstream service, then retry with backoff.',
  503: 'Retry later, or configure the capability that the request requires.',
}

/** Returns the catalogue entry of a code, with the default message and hint filled in. */
export function errorEntry(code: ErrorCode): Required<ErrorEntry> {
  // Core errors are raised before the modules are loaded, too.
  const entry: ErrorEntry = (coreErrors as ErrorTable)[code] ?? errorTable.get(code)
  const { status, description } = entry
  return {
    status,
    description,
    message: entry.message ?? description,
    hint: entry.hint ?? classHints[status] ?? classHints[500],
  }
}

export const errorCodes = (): ErrorCode[] => errorTable.all().map(({ code }) => code as ErrorCode)
export const isErrorCode = (code: unknown): code is ErrorCode =>
  typeof code === 'string' && errorTable.find(code) !== undefined

/** An invalid field: `path` in wire names with `[index]`. */
export type Problem = { code: string; path: string; message: string }

/** A failure stored in the `error` field of a record. */
export const RecordedFailure = z
  .object({
    code: z.string(),
    message: z.string(),
    meta: z
      .record(z.string(), z.unknown())
      .optional()
      .describe('Details of the failure; the fields depend on the code'),
  })
  .meta({ id: 'RecordedFailure' })
export type RecordedFailure = z.output<typeof RecordedFailure>

/** Limits on the characters of a value and the values of a list in a message. */
const MAX_VALUE_CHARS = 200
const MAX_LISTED_VALUES = 5

/** Fills the placeholders of a catalogue message from the meta of an occurrence; missing values are omitted. */
function fillMessage(message: string, meta: Record<string, unknown> = {}): string {
  return message.replace(/( ?)\{(\w+)\}/g, (_match, space: string, name: string) => {
    const value = meta[name]
    if (value === undefined) return ''
    const text = Array.isArray(value) ? value.slice(0, MAX_LISTED_VALUES).join(', ') : String(value)
    return `${space}${text.slice(0, MAX_VALUE_CHARS)}`
  })
}

/** Ends an attempt at work without a failure: the work continues elsewhere or later. */
export class AttemptEndedError extends Error {}

/** The only error class returned to callers. `status` differs from the catalogue only for REQUEST_REJECTED. */
export class AppError extends Error {
  readonly code: ErrorCode
  readonly status: number
  readonly meta?: Record<string, unknown>
  readonly headers?: Record<string, string>
  /** Whether a FORBIDDEN is due to the OAuth grant alone: the caller's own permissions allow the action. */
  readonly grantLacks: boolean
  constructor(
    code: ErrorCode,
    options: {
      message?: string
      meta?: Record<string, unknown>
      status?: number
      headers?: Record<string, string>
      grantLacks?: boolean
      cause?: unknown
    } = {},
  ) {
    super(options.message ?? fillMessage(errorEntry(code).message, options.meta), { cause: options.cause })
    this.code = code
    this.status = options.status ?? errorEntry(code).status
    this.meta = options.meta
    this.headers = options.headers
    this.grantLacks = options.grantLacks ?? false
  }

  /** Returns the failure in the form stored on a record. */
  recorded(): RecordedFailure {
    return { code: this.code, message: this.message, ...(this.meta ? { meta: this.meta } : {}) }
  }
}

/** Returns the stored form of a thrown error. Errors without a code become INTERNAL_ERROR; only the log has their text. */
export const recordedFailure = (error: unknown): RecordedFailure =>
  (error instanceof AppError ? error : new AppError('INTERNAL_ERROR')).recorded()

/** Raises a catalogued error. */
export function raise(code: ErrorCode, options: ConstructorParameters<typeof AppError>[1] = {}): never {
  throw new AppError(code, options)
}

/** Returns SERVICE_NOT_READY with the failed checks and the time after which to retry. */
export const serviceNotReady = (
  checks: Record<string, string>,
  { retryAfterSeconds, ...more }: { retryAfterSeconds?: number; message?: string; cause?: unknown } = {},
): AppError =>
  new AppError('SERVICE_NOT_READY', {
    ...more,
    meta: { checks },
    ...(retryAfterSeconds === undefined ? {} : { headers: { 'Retry-After': String(retryAfterSeconds) } }),
  })

/** Returns a message with the first problem and the number of others. */
export function problemsText([first, ...others]: readonly Problem[]): string {
  const text = first.path ? `${first.path}: ${first.message}` : first.message
  return others.length === 0 ? text : `${text}, and ${others.length} more`
}

/** Formats counts by name for a message: `agents: 2, traces: 1`. */
export const countsText = (counts: Record<string, number>): string =>
  Object.entries(counts)
    .filter(([, count]) => count > 0)
    .map(([name, count]) => `${name.replaceAll('_', ' ')}: ${count}`)
    .join(', ')

/** Raises VALIDATION_FAILED with its problems; the message contains the first. */
export function raiseInvalid(problems: Problem | Problem[]): never {
  const items = Array.isArray(problems) ? problems : [problems]
  const first = items[0]
  throw new AppError('VALIDATION_FAILED', {
    message: first.path ? `${first.path}: ${first.message}` : first.message,
    meta: { problems: items },
  })
}

/** Raises VALIDATION_FAILED for the value of one field. */
export function raiseInvalidValue(path: string, message: string): never {
  raiseInvalid({ code: 'INVALID_VALUE', path, message })
}

/** Returns the response body of an error. */
export function errorBody(error: AppError, docsBaseUrl: string) {
  return {
    error: {
      code: error.code,
      message: error.message,
      hint: errorEntry(error.code).hint,
      docs_url: `${docsBaseUrl}/errors#${error.code}`,
      ...(error.meta ? { meta: error.meta } : {}),
    },
  }
}

/** Returns the catalogue in the form of /errors.json and x-error-codes. */
export const errorDocument = (docsBaseUrl: string) =>
  Object.fromEntries(
    errorCodes().map(code => {
      const { status, description, hint } = errorEntry(code)
      return [code, { status, description, hint, docs_url: `${docsBaseUrl}/errors#${code}` }]
    }),
  )

/** Returns the failure of work that was abandoned after its workers were lost; `meta.reason` as in a failed turn. */
export const executorLost = (): AppError => new AppError('EXECUTOR_LOST', { meta: { reason: 'executor_lost' } })
