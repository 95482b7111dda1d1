import type { Operation, OperationResult } from '#core/api/operation.ts'
import { AppError, errorBody } from '#core/base/errors.ts'
import { isObject, parseExactJson } from '#core/base/exact-json.ts'
import { truncateBytes } from '#core/base/storable-text.ts'
import { type McpClientSession, refuseOverHttp } from './session.ts'

export type ToolResult = { content: object[]; structuredContent?: unknown; isError?: boolean }

/** Maximum size of a text result, in bytes. */
const MAX_TEXT = 1024 * 1024

const TRUNCATED_NOTE =
  'The result was truncated here. Reduce it with limit and offset or filters, if the tool has them.'

/** Returns a result with one JSON object. */
export const jsonResult = (value: object): ToolResult => ({
  content: [{ type: 'text', text: JSON.stringify(value) }],
  structuredContent: value,
})

/** Converts the result of an operation into a tool result. */
export async function toolResult(
  session: McpClientSession,
  operation: Operation,
  answer: OperationResult,
): Promise<ToolResult> {
  const text = await textOf(operation, answer)
  if (Buffer.byteLength(text) > MAX_TEXT)
    return {
      content: [
        { type: 'text', text: truncateBytes(text, MAX_TEXT) },
        { type: 'text', text: TRUNCATED_NOTE },
      ],
    }
  const value = answer.stream
    ? isJson(answer)
      ? parseExactJson(text)
      : undefined
    : (answer.body ?? parseExactJson(text))
  return { content: [{ type: 'text', text }], ...structuredContentOf(session, value) }
}

const isJson = ({ contentType }: OperationResult): boolean => contentType?.startsWith('application/json') ?? false

/** Before 2026, structured content had to be an object. */
const structuredContentOf = ({ modern }: McpClientSession, value: unknown): { structuredContent?: unknown } =>
  value !== undefined && (modern || isObject(value)) ? { structuredContent: value } : {}

async function textOf({ method }: Operation, { status, body, text, stream }: OperationResult): Promise<string> {
  if (!stream) {
    if (status === 204 || body === undefined) return method === 'delete' ? '{"deleted":true}' : '{}'
    return text ?? JSON.stringify(body)
  }
  const pieces: Buffer[] = []
  let length = 0
  for await (const piece of stream) {
    const bytes = Buffer.from(piece as Buffer)
    pieces.push(bytes)
    length += bytes.length
    if (length > MAX_TEXT) break
  }
  return Buffer.concat(pieces).toString('utf8')
}

/** Converts an error of the catalogue into a result that the model can read; other errors are rethrown. */
export function errorResult(session: McpClientSession, error: unknown): ToolResult {
  if (!(error instanceof AppError)) throw error
  const { services, exchange } = session
  // The client can request more consent, with the challenge of an HTTP error.
  if (error.status === 403 && error.headers?.['WWW-Authenticate']) refuseOverHttp(session, error)
  if (error.code === 'INTERNAL_ERROR')
    services.log.error({ err: error.cause, request_id: exchange.request.id, ...exchange.noted }, 'operation failed')
  exchange.noted.code = error.code
  const body = errorBody(error, services.config.DOCS_BASE_URL)
  return { content: [{ type: 'text', text: JSON.stringify(body) }], structuredContent: body, isError: true }
}
