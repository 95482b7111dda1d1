import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import { Superseded } from '../../core/jobs/attempt.ts'
import type { Services } from '../../core/process/services.ts'
import { signToken } from '../../identity/tokens.ts'
import type { Page } from '../chunks/model.ts'
import { pagesOf } from '../chunks/pages.ts'
import type { DocumentRow } from '../documents/model.ts'
import { textOf } from '../documents/store.ts'
import { extractPdf, extractText, tooMuchText } from '../extract/extract.ts'
import { filePieces } from '../files/bytes.ts'
import { essenceOf } from '../files/media-type.ts'
import { type FileRow, fileKind } from '../files/model.ts'
import { convert } from '../rules/convert.ts'
import { isNative, matchRule } from '../rules/match.ts'
import type { IngestionRuleRow } from '../rules/model.ts'
import { type Claim, keepPages } from './store.ts'

/** What became of a source. `retry`: it failed in a way that another try may not. */
export type Source =
  | { kind: 'pages'; pages: Page[]; total_pages: number; rule: IngestionRuleRow | null }
  | { kind: 'pending' }
  | { kind: 'failed'; error: RecordedFailure; retry: boolean }

const failed = (error: RecordedFailure, retry = false): Source => ({ kind: 'failed', error, retry })

const recorded = (code: 'FILE_PARSE_FAILED' | 'UNSUPPORTED_FILE_TYPE' | 'RESOURCE_NOT_FOUND', message: string) =>
  new AppError(code, { message }).recorded()

const hasText = (pages: Page[]): boolean => pages.some(page => /\S/.test(page.text))

/**
 * The text of a document's file in pages: what a converter has posted, the file's own text, or what the converter of
 * its rule makes of it. Rules apply as they stand now. Text that a document holds itself is its
 * source as it is. Raises what reading the file raises, and Superseded when a callback was faster than the answer.
 */
export async function readSource(
  services: Services,
  document: DocumentRow,
  claim: Claim,
  signal: AbortSignal,
): Promise<Source> {
  const { pool, config } = services
  const file = await fileKind.find(pool, document.file_id)
  if (!file || file.storage === null) return failed(recorded('RESOURCE_NOT_FOUND', 'The file has no bytes any more'))
  const rule = await matchRule(pool, document.project_id, file)
  const source = claim.pages
    ? { pages: claim.pages, total_pages: claim.pages.length }
    : file.storage === 'text'
      ? await ownText(services, document.id)
      : await fileText(services, document, claim, file, rule, signal)
  if ('kind' in source) return source
  if (!hasText(source.pages)) return failed(recorded('FILE_PARSE_FAILED', 'The file has no extractable text'))
  const tooMuch = tooMuchText(source.pages, config.INGESTION_MAX_TEXT_BYTES)
  return tooMuch ? failed(tooMuch) : { kind: 'pages', rule, ...source }
}

type Read = { pages: Page[]; total_pages: number } | Exclude<Source, { kind: 'pages' }>

async function ownText({ pool }: Services, documentId: string): Promise<Read> {
  const text = await textOf(pool, documentId)
  const pages = pagesOf(text?.content ?? '', text?.pages ?? null)
  return { pages, total_pages: pages.length }
}

async function fileText(
  services: Services,
  document: DocumentRow,
  claim: Claim,
  file: FileRow,
  rule: IngestionRuleRow | null,
  signal: AbortSignal,
): Promise<Read> {
  if (isNative(file.content_type) && rule?.native_extraction !== 'skip') {
    const read = await nativeText(services, file, signal)
    if ('kind' in read || hasText(read.pages) || !rule) return read
  }
  if (!rule) return failed(recorded('UNSUPPORTED_FILE_TYPE', `No rule converts ${file.content_type}`))
  const outcome = await convert(services, rule, {
    document_id: document.id,
    attempt_id: claim.id,
    file,
    principal: claim.principal,
    callback: rule.tool_id === null ? null : await callbackOf(services, document.id, claim),
    signal,
  })
  if (outcome.kind === 'failed') return failed(outcome.error)
  if (outcome.kind === 'pending') return outcome
  if (!(await keepPages(services.pool, claim, outcome.pages))) throw new Superseded()
  return { pages: outcome.pages, total_pages: outcome.pages.length }
}

async function nativeText(services: Services, file: FileRow, signal: AbortSignal): Promise<Read> {
  const { config } = services
  const extracted =
    essenceOf(file.content_type as string) === 'application/pdf'
      ? await extractPdf(async () => ({ size: file.size as number, pieces: filePieces(services, file) }), config, {
          project: file.project_id,
          signal,
        })
      : await extractText(filePieces(services, file), file.content_type as string, config)
  return extracted.ok ? extracted : failed(extracted.error, extracted.retry)
}

const DAY_SECONDS = 24 * 60 * 60

/** Where a tool may post its text later; null when it may not, or when this deployment has no address to be reached at. */
async function callbackOf(
  services: Services,
  documentId: string,
  claim: Claim,
): Promise<{ url: string; token: string } | null> {
  const { config } = services
  if (!claim.allow_deferral || !config.baseUrlGiven) return null
  const seconds = Math.max(DAY_SECONDS, Math.ceil((2 * config.CONVERSION_STALL_TIMEOUT_MS) / 1000))
  const { token } = await signToken(services, 'ingestion', documentId, { attempt_id: claim.id }, seconds)
  const url = `${config.BASE_URL}/api/v1/documents/${documentId}/ingestion-callback?token=${encodeURIComponent(token)}`
  return { url, token }
}
