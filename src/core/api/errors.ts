import { z } from 'zod'
import { declarations } from '../declarations.ts'

/**
 * One code: its status, what it means, what to do about it, and the message of an occurrence that has none of its own, in
 * which `{name}` stands for what the meta of the occurrence says under that name.
 */
export type ErrorEntry = { status: number; description: string; message?: string; hint?: string }

export type ErrorTable = Record<string, ErrorEntry>

/** The codes of a table, as a type. */
export type CodesOf<T> = { [Code in keyof T]: true }

/** What the pipeline itself raises, and what no module owns. */
export const coreErrors = {
  API_KEY_PROJECT_SCOPE: {
    status: 403,
    description: 'Project-bound credential targets another project',
    message:
      'The credential is bound to the project {scoped_project} and cannot act in the project {requested_project}',
  },
  FORBIDDEN: { status: 403, description: 'Not permitted', message: 'Forbidden' },
  IDEMPOTENCY_IN_PROGRESS: {
    status: 409,
    description: 'A repeat while the first request still runs',
    message: 'The first request with this Idempotency-Key still runs',
    hint: 'Wait for the first request to end, then repeat with the same key.',
  },
  IDEMPOTENCY_KEY_REUSED: {
    status: 409,
    description: 'An Idempotency-Key repeated with another body',
    message: 'The Idempotency-Key was used with another body',
    hint: 'Repeat the first request as it was, or give this one another Idempotency-Key.',
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
    message: 'The {field} {name} is taken',
    hint: 'Take another name or path, or change or delete what has this one.',
  },
  NOT_IMPLEMENTED: { status: 501, description: 'Option not implemented' },
  PRECONDITION_FAILED: {
    status: 412,
    description: 'If-Match no longer matches',
    message: 'The record has changed since it was read',
  },
  REQUEST_REJECTED: {
    status: 400,
    description: 'Rejected by HTTP layer',
    hint: 'The HTTP layer refused the request: check its method, size, encoding and range.',
  },
  RESOURCE_NOT_FOUND: {
    status: 404,
    description: 'Resource missing or invisible to the credential (a resource in another project looks identical)',
    message: 'There is no resource {id}',
  },
  SECRET_NOT_DECRYPTABLE: {
    status: 500,
    description:
      'Stored trigger or webhook secret undecryptable after the encryption key changed; rotate the secret or restore the key',
    message: 'The secret of {id} cannot be decrypted',
  },
  SERVICE_NOT_READY: {
    status: 503,
    description: '/readyz while a check fails or the process drains',
    message: 'The service is not ready',
    hint: 'Try again shortly; meta.checks names what is not ready.',
  },
  UNAUTHORIZED: { status: 401, description: 'Authentication required or token invalid', message: 'Unauthorized' },
  VALIDATION_FAILED: {
    status: 400,
    description: 'Body failed validation (also pagination, status filter and time-range errors)',
    hint: 'meta.problems lists every offending field by its path.',
  },
  VERSION_CONFLICT: {
    status: 409,
    description: 'Stale expected_version in a body',
    message: 'The record is at version {current_version}, not at the expected_version {expected_version}',
    hint: 'Read the record again and repeat with its version as expected_version.',
  },
} as const satisfies ErrorTable

/**
 * Every code that can be raised or recorded. A module adds those of its own table, so that a code nobody declares does not
 * compile. Append-only: a code keeps its name and its status for ever.
 */
export interface ErrorCodes extends CodesOf<typeof coreErrors> {}

export type ErrorCode = keyof ErrorCodes

/** The error catalogue of the process: it feeds /errors.json, x-error-codes and the error reference. */
export const errorTable = declarations<ErrorEntry & { code: string }>('error code', ({ code }) => code)

const classHints: Record<number, string> = {
  400: 'Check the payload, the parameters and the ids it names; meta says which field.',
  401: 'Send a valid user token or project key as a bearer credential.',
  403: 'The credential lacks the action or belongs to another project.',
  404: 'Check the id and whether the credential can see its project.',
  409: 'The request is well formed but the state of the resource forbids it; read it again.',
  410: 'The resource is gone for good.',
  412: 'Read the record again and repeat the request with its new ETag.',
  413: 'Send a smaller payload.',
  422: 'The request was accepted but could not be carried out; see meta.',
  429: 'Back off and repeat after the time named by Retry-After.',
  500: 'Retry with backoff; the detail is in the server log under the request id.',
  501: 'This deployment does not offer the option.',
  502: 'An upstream dependency failed; meta says what it answered.',
  503: 'A capability this needs is not configured or not ready.',
}

/** Status, message and hint of a code. */
export function errorEntry(code: ErrorCode): Required<ErrorEntry> {
  // Those of core are raised before the modules are loaded, too.
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

/** One offending field: `path` in wire names with `[index]`. */
export type Problem = { code: string; path: string; message: string }

/** A failure kept in a record's `error` field. */
export const RecordedFailure = z
  .object({
    code: z.string(),
    message: z.string(),
    meta: z.record(z.string(), z.unknown()).optional().describe('Facts of the occurrence, by code'),
  })
  .meta({ id: 'RecordedFailure' })
export type RecordedFailure = z.output<typeof RecordedFailure>

/** Characters of a value, and values of a list, that a message shows. */
const SHOWN_LENGTH = 200
const SHOWN_VALUES = 5

/** A message of the catalogue about one occurrence; what its meta does not say is left out. */
function filled(message: string, meta: Record<string, unknown> = {}): string {
  return message.replace(/( ?)\{(\w+)\}/g, (_match, space: string, name: string) => {
    const value = meta[name]
    if (value === undefined) return ''
    const shown = Array.isArray(value) ? value.slice(0, SHOWN_VALUES).join(', ') : String(value)
    return `${space}${shown.slice(0, SHOWN_LENGTH)}`
  })
}

/** The only error that reaches a caller. `status` differs from the catalogue's for REQUEST_REJECTED alone. */
export class AppError extends Error {
  readonly code: ErrorCode
  readonly status: number
  readonly meta?: Record<string, unknown>
  readonly headers?: Record<string, string>
  /** Of FORBIDDEN: the caller's own rights would do, its OAuth grant does not. */
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
    super(options.message ?? filled(errorEntry(code).message, options.meta), { cause: options.cause })
    this.code = code
    this.status = options.status ?? errorEntry(code).status
    this.meta = options.meta
    this.headers = options.headers
    this.grantLacks = options.grantLacks ?? false
  }

  /** The failure as it is recorded on a resource. */
  recorded(): RecordedFailure {
    return { code: this.code, message: this.message, ...(this.meta ? { meta: this.meta } : {}) }
  }
}

/** What is recorded of something that was thrown: of what has no code only that it failed, the rest is for the log. */
export const recordedFailure = (error: unknown): RecordedFailure =>
  (error instanceof AppError ? error : new AppError('INTERNAL_ERROR')).recorded()

/** Raises a catalogued error. */
export function raise(code: ErrorCode, options: ConstructorParameters<typeof AppError>[1] = {}): never {
  throw new AppError(code, options)
}

/** SERVICE_NOT_READY: what is not ready, by check, and when to try again. */
export const serviceNotReady = (
  checks: Record<string, string>,
  { retryAfterSeconds, ...more }: { retryAfterSeconds?: number; message?: string; cause?: unknown } = {},
): AppError =>
  new AppError('SERVICE_NOT_READY', {
    ...more,
    meta: { checks },
    ...(retryAfterSeconds === undefined ? {} : { headers: { 'Retry-After': String(retryAfterSeconds) } }),
  })

/** A message about problems: the first, and how many there are besides. */
export function problemsText([first, ...others]: readonly Problem[]): string {
  const text = first.path ? `${first.path}: ${first.message}` : first.message
  return others.length === 0 ? text : `${text}, and ${others.length} more`
}

/** What there is by its name, as a message shows it: `agents: 2, traces: 1`. */
export const countsText = (counts: Record<string, number>): string =>
  Object.entries(counts)
    .filter(([, count]) => count > 0)
    .map(([name, count]) => `${name.replaceAll('_', ' ')}: ${count}`)
    .join(', ')

/** Raises VALIDATION_FAILED with its problems; the message names the first. */
export function raiseInvalid(problems: Problem | Problem[]): never {
  const items = Array.isArray(problems) ? problems : [problems]
  const first = items[0]
  throw new AppError('VALIDATION_FAILED', {
    message: first.path ? `${first.path}: ${first.message}` : first.message,
    meta: { problems: items },
  })
}

/** The wire body of an error. */
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

/** What /errors.json and x-error-codes serve. */
export const errorDocument = (docsBaseUrl: string) =>
  Object.fromEntries(
    errorCodes().map(code => {
      const { status, description, hint } = errorEntry(code)
      return [code, { status, description, hint, docs_url: `${docsBaseUrl}/errors#${code}` }]
    }),
  )
