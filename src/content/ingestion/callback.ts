import type { IncomingMessage } from 'node:http'
import type { Request, Response } from 'express'
import { z } from 'zod'
import { operation, type StreamedRequest } from '#core/api/operation.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { storableText } from '#core/base/storable-text.ts'
import { jsonReader } from '#core/http/body.ts'
import { httpLayerError } from '#core/http/responses.ts'
import type { Tx } from '#core/writes/writer.ts'
import { verifyToken } from '#identity/tokens/tokens.ts'
import { documentKind } from '../documents/model.ts'
import { lockDocument } from '../documents/store.ts'
import { parsePages } from '../ingestion-rules/pages.ts'
import { failIngestion } from './fail-ingestion.ts'
import { ingestionWork } from './ingest.ts'
import { acceptPages, failAwaitingCallback } from './store.ts'

const CallbackInput = z
  .object({
    text: z.string().optional().describe('Text of the whole document, as one page'),
    pages: z
      .array(
        z.object({
          text: z.string().describe('Text of the page'),
          page_number: z.int().optional().describe('Page number in the file. Default the position in the array.'),
        }),
      )
      .optional()
      .describe('Pages of the document, as an alternative to text'),
    status: z.literal('failed').optional().describe('`failed` - the file could not be converted'),
    message: z.string().optional().describe('Reason of the failure; required with `failed`'),
  })
  .meta({ id: 'IngestionCallbackInput' })
type CallbackInput = z.output<typeof CallbackInput>

/**
 * Parses a JSON body of at most `maxBytes`. Raises CONVERTER_OUTPUT_INVALID for invalid JSON, REQUEST_REJECTED 413, and
 * VALIDATION_FAILED for JSON that is too deep or has too many values.
 */
async function readJson(req: IncomingMessage, maxBytes: number): Promise<unknown> {
  try {
    await jsonReader(maxBytes)(req as Request, {} as Response)
  } catch (error) {
    throw toClientError(error)
  }
  return (req as Request).body
}

function toClientError(error: unknown): AppError {
  if ((error as { type?: string }).type === 'entity.parse.failed')
    return new AppError('CONVERTER_OUTPUT_INVALID', { message: 'The body is not JSON' })
  return httpLayerError(error)
}

/**
 * Parses the output posted by a converter as pages or a failure. Raises CONVERTER_OUTPUT_INVALID, also for `pending`.
 */
function parseOutput(body: unknown, maxPages: number): CallbackInput {
  const { text, pages, status, message } = (body ?? {}) as Record<string, unknown>
  if (status === 'failed') {
    if (typeof message !== 'string') raise('CONVERTER_OUTPUT_INVALID', { message: 'message must be a string' })
    return { status, message: storableText(message, '') }
  }
  if (status !== undefined && text === undefined && pages === undefined)
    raise('CONVERTER_OUTPUT_INVALID', { message: 'status must be `failed`' })
  if (text !== undefined && pages !== undefined)
    raise('CONVERTER_OUTPUT_INVALID', { message: 'text cannot be combined with pages' })
  const result = parsePages(text === undefined ? { pages } : text, maxPages)
  return { pages: result.map(page => ({ text: page.text, page_number: page.number as number })) }
}

/** Returns the attempt ID in a callback token. Raises INGESTION_CALLBACK_INVALID_TOKEN. */
async function requireAttemptId({ services, query, params }: Pick<StreamedRequest, 'services' | 'query' | 'params'>) {
  const claims = typeof query.token === 'string' ? await verifyToken(services, ['ingestion'], query.token) : null
  if (claims?.sub !== params.document_id || typeof claims?.attempt_id !== 'string')
    return raise('INGESTION_CALLBACK_INVALID_TOKEN')
  return claims.attempt_id
}

/** Verifies token and document before it reads the body. */
async function receiveOutput(request: StreamedRequest) {
  await requireAttemptId(request)
  const { services, params, req } = request
  const { INGESTION_MAX_TEXT_BYTES, INGESTION_MAX_PAGES } = services.config
  const { document_id } = params
  if (!(await documentKind.find(services.pool, document_id))) raise('RESOURCE_NOT_FOUND', { meta: { id: document_id } })
  const body = parseOutput(await readJson(req, INGESTION_MAX_TEXT_BYTES), INGESTION_MAX_PAGES)
  return { body, discard: async () => {} }
}

/**
 * Stores the output of a converter. Raises INGESTION_CALLBACK_CONFLICT if the attempt is over, replaced or has output.
 */
async function acceptOutput(tx: Tx, documentId: string, attemptId: string, result: CallbackInput): Promise<void> {
  const document = await lockDocument(tx, documentId)
  if (!document) return raise('RESOURCE_NOT_FOUND', { meta: { id: documentId } })
  const conflict = (): never => raise('INGESTION_CALLBACK_CONFLICT', { meta: { document_id: documentId } })
  if (document.status !== 'processing') conflict()
  if (result.status === 'failed') {
    if (!(await failAwaitingCallback(tx, documentId, attemptId))) conflict()
    await failIngestion(tx, document, { code: 'CONVERTER_FAILED', message: result.message as string })
    return
  }
  const pages = (result.pages ?? []).map(({ text, page_number }) => ({ number: page_number ?? null, text }))
  if (!(await acceptPages(tx, documentId, attemptId, pages))) conflict()
  ingestionWork.wake(tx, { entity: documentId, id: attemptId, project_id: document.project_id })
}

export const completeIngestionCallback = operation({
  id: 'completeIngestionCallback',
  method: 'post',
  path: '/documents/{document_id}/ingestion-callback',
  summary: 'Submit converter output',
  description:
    'For converters, with the token that was sent with the file. The token is valid for one ingestion attempt.',
  tag: 'Documents',
  gate: 'public',
  about: documentKind,
  query: z.object({ token: z.string().optional().describe('Callback token sent to the converter') }),
  body: CallbackInput,
  receive: receiveOutput,
  bodyTimeMs: config => config.HTTP_BODY_TIMEOUT_MS,
  answers: { 204: null },
  raises: [
    'INGESTION_CALLBACK_INVALID_TOKEN',
    'RESOURCE_NOT_FOUND',
    'REQUEST_REJECTED',
    'CONVERTER_OUTPUT_INVALID',
    'INGESTION_CALLBACK_CONFLICT',
  ],
  internal: true,
  async run({ tx, services, params, query, body }) {
    const attemptId = await requireAttemptId({ services, params, query })
    await acceptOutput(tx, params.document_id, attemptId, body)
  },
})
