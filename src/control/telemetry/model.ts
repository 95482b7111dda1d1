import { z } from 'zod'
import { SPAN_KINDS } from '#core/base/span-targets.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { sql } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import { HEADER_NAME, HEADER_VALUE, RESERVED_HEADERS } from '#core/net/headers.ts'
import { receiverUrl } from '../webhooks/model.ts'

/** Channel notified with the project whose target changed. */
export const TARGET_CHANNEL = 'muster_telemetry_targets'

const MAX_HEADERS = 20
const MAX_HEADER_CHARACTERS = 4096

const fields = {
  endpoint: receiverUrl
    .nullable()
    .describe('URL that OTLP traces are posted to as JSON, with its path, often `/v1/traces`. Null without a target.'),
  sample_ratio: z.number().min(0).max(1).describe('Share of traces that is sent, 0 to 1'),
  content: z
    .enum(['none', 'full'])
    .describe(
      '`none` – spans have names, IDs, counts and codes only. `full` – spans of model calls also have their messages, of turns that keep their content',
    ),
  kinds: z.array(z.enum(SPAN_KINDS)).describe('Kinds of spans that are sent; empty for all'),
}

const Headers = z
  .record(z.string(), z.string().max(MAX_HEADER_CHARACTERS))
  .superRefine((headers, context) => {
    const names = Object.keys(headers)
    const refuse = (path: string[], message: string) => context.addIssue({ code: 'custom', path, message })
    if (names.length > MAX_HEADERS) refuse([], `must have at most ${MAX_HEADERS} headers`)
    const lower = names.map(name => name.toLowerCase())
    for (const [index, name] of names.entries()) {
      if (!HEADER_NAME.test(name)) refuse([name], 'is not a header name')
      else if ([...RESERVED_HEADERS, 'content-type'].includes(lower[index])) refuse([name], 'cannot be set')
      else if (lower.indexOf(lower[index]) < index) refuse([name], 'is a duplicate')
      if (!HEADER_VALUE.test(headers[name])) refuse([name], 'must be a header value')
    }
  })
  .describe('Headers of the requests, at most 20. Values may contain references to secrets, `{{secret:<id>}}`.')

export const TelemetryInput = z
  .strictObject({
    endpoint: fields.endpoint,
    headers: Headers.default({}),
    sample_ratio: fields.sample_ratio.default(1),
    content: fields.content.default('none'),
    kinds: fields.kinds.default([]).transform(kinds => [...new Set(kinds)]),
  })
  .meta({
    id: 'ProjectTelemetryInput',
    example: { endpoint: 'https://otel.example.com/v1/traces', headers: { 'x-api-key': 'team-key' } },
  })

export const Telemetry = z
  .object({
    ...fields,
    header_names: z.array(z.string()).describe('Names of the headers; their values are not shown'),
    last_exported_at: z.iso
      .datetime()
      .nullable()
      .describe('Time at which the receiver last accepted spans. Null before that.'),
    lag_seconds: z
      .number()
      .nullable()
      .describe('Age of the oldest span that is not sent, in seconds. Null without one.'),
    dropped: z.int().describe('Number of spans that were dropped: too old, too many, or refused by the receiver'),
    last_error: z
      .string()
      .nullable()
      .describe('Why the last request failed, or spans of it were rejected. Null after a success.'),
  })
  .meta({ id: 'ProjectTelemetry' })

export const TelemetryTest = z
  .object({
    ok: z.boolean().describe('Whether the receiver accepted the span'),
    status_code: z.int().nullable().describe('HTTP status of the response. Null without a response.'),
    response_body: z.string().nullable().describe('First 1,024 bytes of the response, or the reason for the failure'),
    trace_id: z.string().describe('ID of the trace that was sent'),
  })
  .meta({ id: 'ProjectTelemetryTest' })

export const TargetRow = z.object({
  project_id: z.string(),
  endpoint: z.string(),
  sealed_headers: z.string(),
  header_names: z.array(z.string()),
  sample_ratio: z.number(),
  content: z.enum(['none', 'full']),
  kinds: z.array(z.enum(SPAN_KINDS)),
  author: z.custom<PrincipalRecord>(),
  last_exported_at: z.string().nullable(),
  dropped: z.int(),
  failures: z.int(),
  last_error: z.string().nullable(),
  batch_rows: z.int().nullable(),
  updated_at: z.string(),
})
export type TargetRow = z.output<typeof TargetRow>

/** Row to which the headers of a target are sealed. */
export const sealedForTarget = (project_id: string) => ({ kind: 'telemetry_headers', id: project_id, project_id })

export const targetHeaders = sealedColumn({
  table: 'telemetry_targets',
  column: 'sealed_headers',
  kind: 'telemetry_headers',
  id: sql.fragment`project_id`,
})
