import type { IncomingMessage } from 'node:http'
import type { Request, Response } from 'express'
import { z } from 'zod'
import { AppError, raise } from '../../core/api/errors.ts'
import { operation, type StreamedRequest } from '../../core/api/operation.ts'
import { storableText } from '../../core/api/storable-text.ts'
import type { Tx } from '../../core/db/writer.ts'
import { httpLayerError } from '../../core/http/adapter.ts'
import { jsonReader } from '../../core/http/body.ts'
import { verifyToken } from '../../identity/tokens.ts'
import { documentKind } from '../documents/model.ts'
import { lockDocument } from '../documents/store.ts'
import { parsePages } from '../rules/pages.ts'
import { failIngestion } from './fail-ingestion.ts'
import { ingestionQueue } from './queue.ts'
import { acceptPages, failAwaitingCallback } from './store.ts'

const CallbackInput = z
  .object({
    text: z.string().optional().describe('The whole text, as one page'),
    pages: z
      .array(
        z.object({
          text: z.string().describe('Text of the page'),
          page_number: z.int().optional().describe('Its number in the file'),
        }),
      )
      .optional()
      .describe('A page without a number has that of its place'),
    status: z.literal('failed').optional().describe('The file could not be converted'),
    message: z.string().optional().describe('Why not'),
  })
  .meta({ id: 'IngestionCallbackInput' })
type CallbackInput = z.output<typeof CallbackInput>

/**
 * The JSON of a body of at most `maxBytes`. Raises CONVERTER_OUTPUT_INVALID for what is none, REQUEST_REJECTED 413,
 * VALIDATION_FAILED for what is nested too deep or holds too many values.
 */
async function jsonOf(req: IncomingMessage, maxBytes: number): Promise<unknown> {
  try {
    await jsonReader(maxBytes)(req as Request, {} as Response)
  } catch (error) {
    throw refused(error)
  }
  return (req as Request).body
}

function refused(error: unknown): AppError {
  if ((error as { type?: string }).type === 'entity.parse.failed')
    return new AppError('CONVERTER_OUTPUT_INVALID', { message: 'The body is not JSON' })
  return httpLayerError(error)
}

/** What a converter posts, as pages or as its failure. Raises CONVERTER_OUTPUT_INVALID; a `pending` is no result. */
function resultOf(body: unknown, mostPages: number): CallbackInput {
  const { text, pages, status, message } = (body ?? {}) as Record<string, unknown>
  if (status === 'failed') {
    if (typeof message !== 'string') raise('CONVERTER_OUTPUT_INVALID', { message: 'message: must be a string' })
    return { status, message: storableText(message, '') }
  }
  if (status !== undefined && text === undefined && pages === undefined)
    raise('CONVERTER_OUTPUT_INVALID', { message: 'status: only `failed` settles an attempt' })
  if (text !== undefined && pages !== undefined)
    raise('CONVERTER_OUTPUT_INVALID', { message: 'text and pages exclude each other' })
  const result = parsePages(text === undefined ? { pages } : text, mostPages)
  return { pages: result.map(page => ({ text: page.text, page_number: page.number as number })) }
}

/** The attempt that a token is for. Raises INGESTION_CALLBACK_INVALID_TOKEN. */
async function attemptOf({ services, query, params }: Pick<StreamedRequest, 'services' | 'query' | 'params'>) {
  const claims = typeof query.token === 'string' ? await verifyToken(services, ['ingestion'], query.token) : null
  if (claims?.sub !== params.document_id || typeof claims?.attempt_id !== 'string')
    return raise('INGESTION_CALLBACK_INVALID_TOKEN')
  return claims.attempt_id
}

/** Nothing of the body is read for who has no token, or for a document that is gone. */
async function receive(request: StreamedRequest) {
  await attemptOf(request)
  const { services, params, req } = request
  const { INGESTION_MAX_TEXT_BYTES, INGESTION_MAX_PAGES } = services.config
  const { document_id } = params
  if (!(await documentKind.find(services.pool, document_id))) raise('RESOURCE_NOT_FOUND', { meta: { id: document_id } })
  const body = resultOf(await jsonOf(req, INGESTION_MAX_TEXT_BYTES), INGESTION_MAX_PAGES)
  return { body, discard: async () => {} }
}

/** Takes a converter's result, unless the attempt is over, superseded, or has one. Raises INGESTION_CALLBACK_CONFLICT. */
async function deliver(tx: Tx, documentId: string, attemptId: string, result: CallbackInput): Promise<void> {
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
  tx.send(ingestionQueue, { document_id: documentId, attempt_id: attemptId, project_id: document.project_id })
}

export const completeIngestionCallback = operation({
  id: 'completeIngestionCallback',
  method: 'post',
  path: '/documents/{document_id}/ingestion-callback',
  summary: 'Take the text of a document from its converter',
  description:
    'For the converter alone, with the token that it got with the file. The attempt that the token belongs to ends with it.',
  tag: 'Documents',
  gate: 'public',
  about: documentKind,
  query: z.object({ token: z.string().optional().describe('The token that the converter was given') }),
  body: CallbackInput,
  receive,
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
    const attempt = await attemptOf({ services, params, query })
    await deliver(tx, params.document_id, attempt, body)
  },
})
