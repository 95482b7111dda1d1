import { promisify } from 'node:util'
import { inflateRaw } from 'node:zlib'
import { z } from 'zod'
import { isAllowed } from '#core/api/access.ts'
import { kinds } from '#core/api/kind.ts'
import { AppError } from '#core/base/errors.ts'
import { release } from '#core/base/release.ts'
import type { Services } from '#core/base/services.ts'
import { otlpAttributes } from '#core/base/span-targets.ts'
import { ATTRIBUTE } from '#core/base/telemetry-names.ts'
import type { CallerFacts } from '#core/iam/caller.ts'
import type { EgressOutcome } from '#core/net/egress.ts'
import { openJson } from '#core/secrets/json.ts'
import { openText } from '#core/secrets/sealed-text.ts'
import { type SpanContent, sealedForSpans } from '#core/writes/span-outbox.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { type MaskBudget, maskYielding, valuesForTexts } from '#identity/secrets/mask.ts'
import { resolveTokens, valuesToMask } from '#identity/secrets/resolve.ts'
import { credentialsIn, receiverLimits, shownResponse } from '../webhooks/deliver.ts'
import { sealedForTarget, type TargetRow } from './model.ts'
import type { OutboxRow } from './store.ts'

const inflate = promisify(inflateRaw)

const HEAD = `{"resourceSpans":[{"resource":${JSON.stringify({
  attributes: otlpAttributes({ 'service.name': 'muster', 'service.version': release }),
})},"scopeSpans":[{"scope":${JSON.stringify({ name: 'muster', version: release })},"spans":[`
const TAIL = ']}]}]}'

/** Returns the body of a request with spans as JSON texts. */
export const otlpBody = (spans: readonly string[]): string => `${HEAD}${spans.join(',')}${TAIL}`

/** What a receiver answered; without a status, why the request was not sent or has no response. */
export type Receipt = { ok: boolean; status_code: number | null; response_body: string }

const refused = (response_body: string): Receipt => ({ ok: false, status_code: null, response_body })

/** Posts a body to the receiver of a project. Failures of the receiver are values. */
export async function postSpans(
  services: Services,
  target: Pick<TargetRow, 'project_id' | 'endpoint' | 'sealed_headers'>,
  body: string,
  signal?: AbortSignal,
): Promise<Receipt> {
  const { config, egress, pool } = services
  const { project_id, endpoint } = target
  try {
    const stored = openJson<Record<string, string>>(
      services,
      target.sealed_headers,
      sealedForTarget(project_id),
      'Headers',
    )
    const { texts, values } = await resolveTokens(pool, services, project_id, Object.values(stored))
    const headers = Object.fromEntries(Object.keys(stored).map((name, index) => [name, texts[index]]))
    const outcome = await egress.request({
      url: endpoint,
      method: 'POST',
      headers: { ...headers, 'Content-Type': 'application/json' },
      body,
      tenant: project_id,
      ...receiverLimits(config),
      sensitiveHeaders: Object.keys(headers),
      signal,
    })
    return receiptOf(outcome, [...values, ...texts.flatMap(credentialsIn)])
  } catch (error) {
    if (error instanceof AppError) return refused(error.message)
    throw error
  }
}

function receiptOf(outcome: EgressOutcome, sent: readonly string[]): Receipt {
  if (outcome.kind === 'blocked') return refused(`blocked by egress policy: ${outcome.reason}`)
  const shown = shownResponse(outcome, sent)
  return { ok: outcome.kind === 'answer' && outcome.status >= 200 && outcome.status < 300, ...shown }
}

const PartialSuccess = z.object({
  partialSuccess: z.object({ rejectedSpans: z.coerce.number().int().min(1), errorMessage: z.string().default('') }),
})

/** Returns how many spans a receiver rejected of a request that it accepted, and why; null if it rejected none. */
export function rejectedIn({ response_body }: Receipt, sent: number): { spans: number; error: string } | null {
  const read = PartialSuccess.safeParse(parseJson(response_body))
  if (!read.success) return null
  const { rejectedSpans, errorMessage } = read.data.partialSuccess
  const spans = Math.min(sent, rejectedSpans)
  return { spans, error: `${spans} spans rejected: ${errorMessage}` }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return null
  }
}

/** Bytes that are compared to mask the content of one request, a second of work. */
const MAX_COMPARED_BYTES = 32 << 20

/**
 * Returns the spans of rows as JSON texts, with the content that the author of the target may read; null if `stopping` is aborted
 * before.
 */
export async function readSpans(
  services: Services,
  target: TargetRow,
  rows: readonly OutboxRow[],
  stopping: AbortSignal,
): Promise<string[] | null> {
  const hasContent = target.content === 'full' && rows.some(({ sealed_content }) => sealed_content !== null)
  const author = hasContent ? await callerForPrincipal(services, target.author, target.project_id) : null
  const masking = author && {
    values: valuesForTexts(await valuesToMask(services, target.project_id)),
    budget: { bytes: MAX_COMPARED_BYTES },
  }
  const read: string[] = []
  for (const row of rows) {
    if (stopping.aborted) return null
    const spans = (await inflate(Buffer.from(row.spans, 'base64'))).toString('utf8')
    const text = contentOf(services, target.project_id, row)
    const shown = author && mayRead(author, target.project_id, row) ? masking : null
    read.push(text === null ? spans.slice(1, -1) : await withContent(spans, text, shown))
  }
  return read
}

/** Whether a caller may read the content of all traces of a project, and of the trace of a row. */
const mayRead = (author: CallerFacts, project_id: string, { trace_id }: OutboxRow): boolean => {
  const kind = kinds.get('trace')
  return (
    isAllowed(author, READ_CONTENT, { kind, project_id }) &&
    trace_id !== null &&
    isAllowed(author, READ_CONTENT, { kind, row: { id: trace_id, project_id } })
  )
}

/** Action with which content of turns is read. */
export const READ_CONTENT = 'traces:GetTrace'

const contentOf = (services: Services, project_id: string, { id, sealed_content }: OutboxRow): string | null =>
  sealed_content === null ? null : openText(services, sealed_content, sealedForSpans(id, project_id))

type ContentMasking = { values: ReturnType<typeof valuesForTexts>; budget: MaskBudget }

/** Adds the end user to spans, and content with `***` in place of secrets; without `masking` no content. */
async function withContent(spans: string, text: string, masking: ContentMasking | null): Promise<string> {
  const content: SpanContent = JSON.parse(text)
  const read: { spanId: string; attributes: unknown[] }[] = JSON.parse(spans)
  const shownOf = async (key: string, value: string) => {
    if (key === ATTRIBUTE.user) return value
    return masking && maskYielding(value, masking.values, masking.budget)
  }
  for (const { spanId, attributes } of read)
    for (const [key, value] of Object.entries(content[spanId] ?? {})) {
      const stringValue = await shownOf(key, value)
      if (stringValue !== null) attributes.push({ key, value: { stringValue } })
    }
  return read.map(span => JSON.stringify(span)).join(',')
}
