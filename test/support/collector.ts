import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { z } from 'zod'

/**
 * The body of an export of traces as JSON: opentelemetry/proto/trace/v1/trace.proto and common/v1/common.proto of
 * open-telemetry/opentelemetry-proto, with ids as hexadecimal text and 64-bit numbers as text ("JSON Protobuf Encoding" of its
 * OTLP specification), read on 2026-11-30. Unknown fields are refused.
 */
const id = (bytes: number) =>
  z
    .string()
    .length(2 * bytes)
    .regex(/^(?!0+$)[0-9a-f]+$/)
const nanos = z.string().regex(/^[1-9]\d{18}$/)
const scalar = z.union([
  z.strictObject({ stringValue: z.string() }),
  z.strictObject({ boolValue: z.boolean() }),
  z.strictObject({ intValue: z.union([z.int(), z.string().regex(/^-?\d+$/)]) }),
  z.strictObject({ doubleValue: z.number() }),
])
const attributes = z.array(
  z.strictObject({
    key: z.string().min(1),
    value: z.union([scalar, z.strictObject({ arrayValue: z.strictObject({ values: z.array(scalar) }) })]),
  }),
)
const dropped = z.int().optional()
const scope = { name: z.string(), version: z.string().optional() }
const SpanBody = z.strictObject({
  traceId: id(16),
  spanId: id(8),
  parentSpanId: id(8).optional(),
  traceState: z.string().optional(),
  flags: z.int().optional(),
  name: z.string().min(1),
  kind: z.int().min(1).max(5),
  startTimeUnixNano: nanos,
  endTimeUnixNano: nanos,
  attributes,
  droppedAttributesCount: dropped,
  events: z.array(
    z.strictObject({ timeUnixNano: nanos, name: z.string().min(1), attributes, droppedAttributesCount: dropped }),
  ),
  droppedEventsCount: dropped,
  links: z.array(
    z.strictObject({
      traceId: id(16),
      spanId: id(8),
      attributes,
      droppedAttributesCount: dropped,
      traceState: z.string().optional(),
      flags: z.int().optional(),
    }),
  ),
  droppedLinksCount: dropped,
  status: z.strictObject({ code: z.int().min(0).max(2).optional(), message: z.string().optional() }),
})
const Body = z.strictObject({
  resourceSpans: z.array(
    z.strictObject({
      resource: z.strictObject({ attributes, droppedAttributesCount: dropped }),
      scopeSpans: z.array(
        z.strictObject({ scope: z.strictObject(scope), spans: z.array(SpanBody), schemaUrl: z.string().optional() }),
      ),
      schemaUrl: z.string().optional(),
    }),
  ),
})

type Values = Record<string, any>

/** A span as received, with attributes as an object; `kind` and `failed` as words. */
export type ReceivedSpan = {
  name: string
  kind: 'internal' | 'server' | 'client'
  trace: string
  id: string
  parent: string | null
  links: { trace: string; id: string }[]
  events: { name: string; attributes: Values }[]
  attributes: Values
  resource: Values
  failed: boolean
  ms: number
  started: bigint
}

export type Collector = {
  /** Value of OTEL_EXPORTER_OTLP_ENDPOINT. */
  url: string
  spans: ReceivedSpan[]
  /** Bodies as received. */
  bodies: string[]
  headers: IncomingHttpHeaders[]
  /** Whether requests are left without an answer. */
  hangs: boolean
  /** Problems of bodies; empty if all are valid. */
  problems: string[]
  named(name: string): ReceivedSpan[]
  close(): Promise<void>
}

const plainValue = (value: any): unknown =>
  'arrayValue' in value
    ? value.arrayValue.values.map(plainValue)
    : 'intValue' in value
      ? Number(value.intValue)
      : Object.values(value)[0]
const plainValues = (list: z.output<typeof attributes>): Values =>
  Object.fromEntries(list.map(({ key, value }) => [key, plainValue(value)]))

function readSpans(body: z.output<typeof Body>): ReceivedSpan[] {
  return body.resourceSpans.flatMap(({ resource, scopeSpans }) =>
    scopeSpans.flatMap(({ spans }) =>
      spans.map(span => ({
        name: span.name,
        kind: (['internal', 'server', 'client'] as const)[span.kind - 1],
        trace: span.traceId,
        id: span.spanId,
        parent: span.parentSpanId ?? null,
        links: span.links.map(link => ({ trace: link.traceId, id: link.spanId })),
        events: span.events.map(event => ({ name: event.name, attributes: plainValues(event.attributes) })),
        attributes: plainValues(span.attributes),
        resource: plainValues(resource.attributes),
        failed: span.status.code === 2,
        ms: Number(BigInt(span.endTimeUnixNano) - BigInt(span.startTimeUnixNano)) / 1e6,
        started: BigInt(span.startTimeUnixNano),
      })),
    ),
  )
}

/** A collector of traces on 127.0.0.1 that checks the bodies that it receives. */
export async function startCollector(): Promise<Collector> {
  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('data', chunk => chunks.push(chunk))
    request.on('end', () => {
      const text = Buffer.concat(chunks).toString('utf8')
      collector.bodies.push(text)
      collector.headers.push(request.headers)
      if (collector.hangs) return
      const read = Body.safeParse(JSON.parse(text))
      if (request.method !== 'POST' || request.url !== '/v1/traces')
        collector.problems.push(`${request.method} ${request.url}`)
      if (request.headers['content-type'] !== 'application/json') collector.problems.push('no JSON')
      if (read.success) collector.spans.push(...readSpans(read.data))
      else collector.problems.push(z.prettifyError(read.error))
      response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const collector: Collector = {
    url: `http://127.0.0.1:${port}`,
    spans: [],
    bodies: [],
    headers: [],
    hangs: false,
    problems: [],
    named: name => collector.spans.filter(span => span.name === name),
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
  return collector
}
