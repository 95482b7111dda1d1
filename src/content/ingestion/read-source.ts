import { AppError, type ErrorCode, type RecordedFailure, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { jsonb, sql } from '#core/db/sql.ts'
import { signToken } from '#identity/tokens/tokens.ts'
import { findDocumentText } from '../documents/store.ts'
import { extractPdf, extractText, textLimitFailure } from '../extract/extract.ts'
import { essenceOf } from '../files/media-type.ts'
import { type FileRow, fileKind } from '../files/model.ts'
import { fileChunks } from '../files/read-file.ts'
import type { PageText } from '../index/chunks/model.ts'
import { splitIntoPages } from '../index/chunks/pages.ts'
import { convertFile } from '../ingestion-rules/convert.ts'
import { isNative, matchRule } from '../ingestion-rules/match.ts'
import type { IngestionRuleRow } from '../ingestion-rules/model.ts'
import { inStage } from './stages.ts'
import type { IngestionAttempt } from './store.ts'

/** `charset`: of the file, if it was detected. */
type SourceText = { pages: PageText[]; total_pages: number; charset?: string | null }

const hasText = (pages: PageText[]): boolean => pages.some(page => /\S/.test(page.text))

const toError = ({ code, message, meta }: RecordedFailure): AppError =>
  new AppError(code as ErrorCode, { message, meta })

/**
 * Returns the text of a document's file in pages: the stored converter output, the document text that is the content of
 * the file, natively extracted text, or the output of the converter of the matching rule. Null if the converter defers.
 * @throws ClaimLostError if a callback arrived before the response of the converter
 */
export async function readSource(
  attempt: IngestionAttempt,
): Promise<(SourceText & { rule: IngestionRuleRow | null }) | null> {
  const { services, entity: document, claim } = attempt
  const { pool, config } = services
  const file = await fileKind.find(pool, document.file_id)
  if (!file || file.storage === null) return raise('RESOURCE_NOT_FOUND', { message: 'The content of the file is lost' })
  const rule = await matchRule(pool, document.project_id, file)
  const source = claim.pages
    ? { pages: claim.pages, total_pages: claim.pages.length }
    : file.storage === 'text'
      ? await inStage('read', async note => {
          const text = await readDocumentText(services, document.id)
          note({ pages: text.total_pages, bytes: file.size })
          return text
        })
      : await readFileText(attempt, file, rule)
  if (!source) return null
  if (!hasText(source.pages)) raise('FILE_PARSE_FAILED')
  const tooLong = textLimitFailure(source.pages, config.INGESTION_MAX_TEXT_BYTES)
  if (tooLong) throw toError(tooLong)
  return { ...source, rule }
}

async function readDocumentText({ pool }: Services, documentId: string): Promise<SourceText> {
  const text = await findDocumentText(pool, documentId)
  const pages = splitIntoPages(text?.content ?? '', text?.pages ?? null)
  return { pages, total_pages: pages.length }
}

async function readFileText(
  attempt: IngestionAttempt,
  file: FileRow,
  rule: IngestionRuleRow | null,
): Promise<SourceText | null> {
  const { services, entity: document, claim, signal } = attempt
  if (isNative(file.content_type) && rule?.native_extraction !== 'skip') {
    const source = await inStage('read', async note => {
      const text = await extractNativeText(services, file, signal)
      note({ pages: text.total_pages, bytes: file.size })
      return text
    })
    if (hasText(source.pages) || !rule) return source
  }
  if (!rule)
    return raise('UNSUPPORTED_FILE_TYPE', { message: `No ingestion rule matches content type '${file.content_type}'` })
  const outcome = await inStage('convert', async note => {
    const converted = await convertFile(services, rule, {
      document_id: document.id,
      attempt_id: claim.id,
      file,
      principal: claim.principal,
      callback: rule.tool_id === null ? null : await createCallback(attempt),
      signal,
    })
    note({ pages: converted.kind === 'pages' ? converted.pages.length : null, bytes: file.size })
    return converted
  })
  if (outcome.kind === 'failed') throw toError(outcome.error)
  if (outcome.kind === 'pending') return null
  const { pages } = outcome
  // Later callbacks are refused, and a retry does not call the converter again.
  await attempt.set(services.pool, sql.fragment`pages = ${jsonb(pages)}`)
  return { pages, total_pages: pages.length }
}

/** @throws errors of reading the file; without a code if another attempt may succeed */
async function extractNativeText(services: Services, file: FileRow, signal: AbortSignal): Promise<SourceText> {
  const { config } = services
  const extracted =
    essenceOf(file.content_type as string) === 'application/pdf'
      ? await extractPdf(async () => ({ size: file.size as number, pieces: fileChunks(services, file) }), config, {
          project: file.project_id,
          signal,
        })
      : await extractText(() => fileChunks(services, file), file.content_type as string, config)
  if (extracted.ok) return extracted
  throw extracted.retry ? new Error(extracted.error.message) : toError(extracted.error)
}

const DAY_SECONDS = 24 * 60 * 60

/** Returns the callback URL and token for a converter; null if deferral is not allowed or BASE_URL is not set. */
async function createCallback({
  services,
  entity: document,
  claim,
}: IngestionAttempt): Promise<{ url: string; token: string } | null> {
  const { config } = services
  if (!claim.allow_deferral || !config.baseUrlGiven) return null
  const seconds = Math.max(DAY_SECONDS, Math.ceil((2 * config.CONVERSION_STALL_TIMEOUT_MS) / 1000))
  const { token } = await signToken(services, 'ingestion', document.id, { attempt_id: claim.id }, seconds)
  const url = `${config.BASE_URL}/api/v1/documents/${document.id}/ingestion-callback?token=${encodeURIComponent(token)}`
  return { url, token }
}
