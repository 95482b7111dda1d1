import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import { ClaimLostError } from '../../core/jobs/handler.ts'
import type { Services } from '../../core/process/services.ts'
import { signToken } from '../../identity/tokens.ts'
import type { PageText } from '../chunks/model.ts'
import { splitIntoPages } from '../chunks/pages.ts'
import type { DocumentRow } from '../documents/model.ts'
import { findDocumentText } from '../documents/store.ts'
import { extractPdf, extractText, textLimitFailure } from '../extract/extract.ts'
import { essenceOf } from '../files/media-type.ts'
import { type FileRow, fileKind } from '../files/model.ts'
import { fileChunks } from '../files/read-file.ts'
import { convertFile } from '../rules/convert.ts'
import { isNative, matchRule } from '../rules/match.ts'
import type { IngestionRuleRow } from '../rules/model.ts'
import { type IngestionClaim, storePages } from './store.ts'

/** Text of a source, or why there is none. `retry`: whether another attempt may succeed. */
export type IngestionSource =
  | { kind: 'pages'; pages: PageText[]; total_pages: number; rule: IngestionRuleRow | null }
  | { kind: 'pending' }
  | { kind: 'failed'; error: RecordedFailure; retry: boolean }

const failed = (error: RecordedFailure, retry = false): IngestionSource => ({ kind: 'failed', error, retry })

const recorded = (code: 'FILE_PARSE_FAILED' | 'UNSUPPORTED_FILE_TYPE' | 'RESOURCE_NOT_FOUND', message: string) =>
  new AppError(code, { message }).recorded()

const hasText = (pages: PageText[]): boolean => pages.some(page => /\S/.test(page.text))

/**
 * Returns the text of a document's file in pages: the stored converter output, the document text that is the content of
 * the file, natively extracted text, or the output of the converter of the matching rule. Throws errors of reading the
 * file, and ClaimLostError if a callback arrived before the response of the converter.
 */
export async function readSource(
  services: Services,
  document: DocumentRow,
  claim: IngestionClaim,
  signal: AbortSignal,
): Promise<IngestionSource> {
  const { pool, config } = services
  const file = await fileKind.find(pool, document.file_id)
  if (!file || file.storage === null) return failed(recorded('RESOURCE_NOT_FOUND', 'The content of the file is lost'))
  const rule = await matchRule(pool, document.project_id, file)
  const source = claim.pages
    ? { pages: claim.pages, total_pages: claim.pages.length }
    : file.storage === 'text'
      ? await readDocumentText(services, document.id)
      : await readFileText(services, document, claim, file, rule, signal)
  if ('kind' in source) return source
  if (!hasText(source.pages)) return failed(recorded('FILE_PARSE_FAILED', 'The file has no extractable text'))
  const tooLong = textLimitFailure(source.pages, config.INGESTION_MAX_TEXT_BYTES)
  return tooLong ? failed(tooLong) : { kind: 'pages', rule, ...source }
}

type SourceText = { pages: PageText[]; total_pages: number } | Exclude<IngestionSource, { kind: 'pages' }>

async function readDocumentText({ pool }: Services, documentId: string): Promise<SourceText> {
  const text = await findDocumentText(pool, documentId)
  const pages = splitIntoPages(text?.content ?? '', text?.pages ?? null)
  return { pages, total_pages: pages.length }
}

async function readFileText(
  services: Services,
  document: DocumentRow,
  claim: IngestionClaim,
  file: FileRow,
  rule: IngestionRuleRow | null,
  signal: AbortSignal,
): Promise<SourceText> {
  if (isNative(file.content_type) && rule?.native_extraction !== 'skip') {
    const source = await extractNativeText(services, file, signal)
    if ('kind' in source || hasText(source.pages) || !rule) return source
  }
  if (!rule)
    return failed(recorded('UNSUPPORTED_FILE_TYPE', `No ingestion rule matches content type '${file.content_type}'`))
  const outcome = await convertFile(services, rule, {
    document_id: document.id,
    attempt_id: claim.id,
    file,
    principal: claim.principal,
    callback: rule.tool_id === null ? null : await createCallback(services, document.id, claim),
    signal,
  })
  if (outcome.kind === 'failed') return failed(outcome.error)
  if (outcome.kind === 'pending') return outcome
  if (!(await storePages(services.pool, claim, outcome.pages))) throw new ClaimLostError()
  return { pages: outcome.pages, total_pages: outcome.pages.length }
}

async function extractNativeText(services: Services, file: FileRow, signal: AbortSignal): Promise<SourceText> {
  const { config } = services
  const extracted =
    essenceOf(file.content_type as string) === 'application/pdf'
      ? await extractPdf(async () => ({ size: file.size as number, pieces: fileChunks(services, file) }), config, {
          project: file.project_id,
          signal,
        })
      : await extractText(fileChunks(services, file), file.content_type as string, config)
  return extracted.ok ? extracted : failed(extracted.error, extracted.retry)
}

const DAY_SECONDS = 24 * 60 * 60

/** Returns the callback URL and token for a converter; null if deferral is not allowed or BASE_URL is not set. */
async function createCallback(
  services: Services,
  documentId: string,
  claim: IngestionClaim,
): Promise<{ url: string; token: string } | null> {
  const { config } = services
  if (!claim.allow_deferral || !config.baseUrlGiven) return null
  const seconds = Math.max(DAY_SECONDS, Math.ceil((2 * config.CONVERSION_STALL_TIMEOUT_MS) / 1000))
  const { token } = await signToken(services, 'ingestion', documentId, { attempt_id: claim.id }, seconds)
  const url = `${config.BASE_URL}/api/v1/documents/${documentId}/ingestion-callback?token=${encodeURIComponent(token)}`
  return { url, token }
}
