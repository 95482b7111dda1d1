import { AppError, type ErrorCode, isErrorCode, type RecordedFailure } from '../base/errors.ts'
import type { Fragment, Queryable } from '../db/sql.ts'
import type { EndUser, EndUserScope } from '../iam/caller.ts'

/** Access of end users to operations by their tokens, and the views of records and errors for them. */

/**
 * What an end user sees of a record: `shown` fields, unchanged or converted. All others are hidden; a test requires that
 * `hidden` names them, so that every new field is a decision.
 */
export type EndUserView = {
  shown: Readonly<Record<string, true | ((value: any) => unknown)>>
  hidden: readonly string[]
}

/** Returns a view; `shown` lists names, or maps them to `true` or a conversion. */
export const endUserView = (
  shown: readonly string[] | EndUserView['shown'],
  hidden: readonly string[] = [],
): EndUserView => ({
  shown: Array.isArray(shown)
    ? Object.fromEntries(shown.map(name => [name, true as const]))
    : (shown as EndUserView['shown']),
  hidden,
})

/** Returns the fields of a record that an end user sees. */
export function showToEndUser({ shown }: EndUserView, record: object): object {
  const fields: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(record)) {
    const show = Object.hasOwn(shown, name) ? shown[name] : undefined
    if (show !== undefined) fields[name] = show === true ? value : show(value)
  }
  return fields
}

/** The declaration that opens an operation to end users. Without it, an operation refuses their tokens. */
export type EndUserAccess<Row = any> = {
  /** Scope of the token that opens the operation. */
  scope: EndUserScope
  /** Fields of the body that may be sent; any other is refused. */
  fields?: readonly string[]
  /** Returns the name of a field whose value is refused, of a body with the above fields only. */
  refuses?: (body: Record<string, unknown>) => string | undefined
  /** Query parameters that may be sent, besides the page parameters. */
  query?: readonly string[]
  /** Whether the call sends a message: counted by `messages_per_hour`, its texts limited by `message_chars`. */
  sends?: boolean
  /** Whether the call starts a turn, which counts like a message unless the same request of a mount has sent one. */
  starts?: boolean
  /** Whether the call opens an event stream; default: by the declared events and the field `stream` of the body. */
  streams?: (body: Record<string, unknown>) => boolean
  /** Whether the item belongs to the end user; otherwise it is answered like an unknown id. Required for items. */
  owns?: (row: Row, endUser: EndUser, db: Queryable) => boolean | Promise<boolean>
  /** Condition of the own rows of a list, over `t`. Required for lists. */
  rows?: (endUser: EndUser) => Fragment
  /** View of a JSON response, or of each record of a page. */
  view?: EndUserView
  /** Views of the events of a stream, by name; other events are omitted, `error` is always shown. */
  events?: Readonly<Record<string, EndUserView>>
  /** Views of the events that protocol mounts translate, in addition to `events` or in place of them. */
  mountEvents?: Readonly<Record<string, EndUserView>>
  /** Whether a response may be a stream of bytes of the item itself. */
  bytes?: boolean
  /** Whether its caller, a mount, presents the responses and errors to end users. */
  presented?: boolean
}

/** Error text in place of texts of models, tools and vendors. */
const CONCEALED = 'The answer could not be produced.'

/** Fields of `meta` that end users see with any code, and with specific codes. */
const SHOWN_META = ['generation_id', 'session_id']
const SHOWN_META_OF: Readonly<Record<string, readonly string[]>> = {
  ACTOR_LIMIT_EXCEEDED: ['actor_id', 'limit', 'max', 'resets_at'],
  FORBIDDEN: ['field', 'parameter', 'scope'],
  MEDIA_NOT_ACCEPTED: ['file_id', 'reason'],
  SESSION_UNDER_OPERATOR: ['session_id'],
  STREAM_LIMIT_EXCEEDED: ['scope', 'max'],
  VALIDATION_FAILED: ['problems'],
}
/** Codes whose messages describe the request only. For other codes the message of the catalogue is shown. */
const SHOWN_MESSAGES: ReadonlySet<string> = new Set([
  'ACTOR_LIMIT_EXCEEDED',
  'MEDIA_NOT_ACCEPTED',
  'REQUEST_REJECTED',
  'STREAM_LIMIT_EXCEEDED',
  'VALIDATION_FAILED',
])
const SHOWN_HEADERS: ReadonlySet<string> = new Set(['retry-after', 'www-authenticate'])

/** Status of a temporary failure of the deployment, whose message is not about the work. */
const NOT_READY = 503

function shownMeta(code: string, meta: Record<string, unknown> = {}): Record<string, unknown> | undefined {
  if (code === 'QUOTA_EXCEEDED') return undefined
  const names = [...SHOWN_META, ...(SHOWN_META_OF[code] ?? [])]
  const shown = Object.entries(meta).filter(([name]) => names.includes(name))
  return shown.length === 0 ? undefined : Object.fromEntries(shown)
}

/** Returns an error as an end user sees it. */
export function endUserError(error: AppError): AppError {
  const { code, status, headers = {} } = error
  const isFault = status >= 500 && status !== NOT_READY
  const meta = shownMeta(code, error.meta)
  return new AppError(code, {
    status,
    message: isFault ? CONCEALED : SHOWN_MESSAGES.has(code) ? error.message : undefined,
    meta: isFault ? meta && pickGeneration(meta) : meta,
    headers: Object.fromEntries(Object.entries(headers).filter(([name]) => SHOWN_HEADERS.has(name.toLowerCase()))),
    cause: error.cause,
  })
}

const pickGeneration = ({ generation_id }: Record<string, unknown>): Record<string, unknown> | undefined =>
  generation_id === undefined ? undefined : { generation_id }

/** Returns a failure stored on a record as an end user sees it, always with the message of the catalogue. */
export function endUserFailure(
  failure: Pick<RecordedFailure, 'code'> | null,
): { code: string; message: string } | null {
  if (!failure) return null
  const code: ErrorCode = isErrorCode(failure.code) ? failure.code : 'INTERNAL_ERROR'
  const { message } = endUserError(new AppError(code))
  return { code, message }
}
