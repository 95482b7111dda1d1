import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { z } from 'zod'
import { CANARIES } from './canaries.ts'

/**
 * The bodies of exports as JSON: trace/v1/trace.proto, metrics/v1/metrics.proto and common/v1/common.proto below
 * opentelemetry/proto of open-telemetry/opentelemetry-proto, with ids as hexadecimal text and 64-bit numbers as text ("JSON Protobuf Encoding" of its
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
const resource = z.strictObject({ attributes, droppedAttributesCount: dropped })
const Body = z.strictObject({
  resourceSpans: z.array(
    z.strictObject({
      resource,
      scopeSpans: z.array(
        z.strictObject({ scope: z.strictObject(scope), spans: z.array(SpanBody), schemaUrl: z.string().optional() }),
      ),
      schemaUrl: z.string().optional(),
    }),
  ),
})

const count = z.union([z.int().min(0), z.string().regex(/^\d+$/)])
const point = { attributes, startTimeUnixNano: nanos, timeUnixNano: nanos }
const numbers = z.array(z.strictObject({ ...point, asDouble: z.number().optional(), asInt: count.optional() })).min(1)
const temporality = z.int().min(1).max(2)
const MetricBody = z
  .strictObject({
    name: z.string().regex(/^[A-Za-z][\w./-]{0,254}$/),
    description: z.string(),
    unit: z.string().max(63),
    sum: z
      .strictObject({ dataPoints: numbers, aggregationTemporality: temporality, isMonotonic: z.boolean() })
      .optional(),
    gauge: z.strictObject({ dataPoints: numbers }).optional(),
    histogram: z
      .strictObject({
        dataPoints: z
          .array(
            z
              .strictObject({
                ...point,
                count,
                sum: z.number().optional(),
                bucketCounts: z.array(count),
                explicitBounds: z.array(z.number()),
              })
              .refine(
                ({ bucketCounts, explicitBounds, count }) =>
                  bucketCounts.length === explicitBounds.length + 1 &&
                  bucketCounts.reduce<number>((sum, each) => sum + Number(each), 0) === Number(count),
                'bucket counts do not match',
              ),
          )
          .min(1),
        aggregationTemporality: temporality,
      })
      .optional(),
  })
  .refine(({ sum, gauge, histogram }) => [sum, gauge, histogram].filter(Boolean).length === 1, 'not one kind of data')
const MetricsBody = z.strictObject({
  resourceMetrics: z.array(
    z.strictObject({
      resource,
      scopeMetrics: z.array(
        z.strictObject({
          scope: z.strictObject(scope),
          metrics: z.array(MetricBody),
          schemaUrl: z.string().optional(),
        }),
      ),
      schemaUrl: z.string().optional(),
    }),
  ),
})

type Values = Record<string, any>

/** A metric as received, with one point for each set of attributes; a histogram has count and sum. */
export type ReceivedMetric = {
  name: string
  unit: string
  kind: 'sum' | 'gauge' | 'histogram'
  points: { attributes: Values; value: number; sum?: number }[]
  resource: Values
}

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
  /** The metrics of the last export of each process. */
  metrics: Map<string, ReceivedMetric[]>
  /** Bodies as received. */
  bodies: string[]
  headers: IncomingHttpHeaders[]
  /** Whether requests are left without an answer. */
  hangs: boolean
  /** Status of requests that are refused, of those that `refuses` chooses; null while they are accepted. */
  status: number | null
  refuses: (body: string) => boolean
  /** Problems of bodies; empty if all are valid. */
  problems: string[]
  /** Spans received. */
  count: number
  /** Spans with a canary, with what contains it. */
  leaks: string[]
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

function readMetrics(body: z.output<typeof MetricsBody>): ReceivedMetric[] {
  return body.resourceMetrics.flatMap(({ resource, scopeMetrics }) =>
    scopeMetrics.flatMap(({ metrics }) =>
      metrics.map(({ name, unit, sum, gauge, histogram }) => ({
        name,
        unit,
        kind: sum ? ('sum' as const) : gauge ? ('gauge' as const) : ('histogram' as const),
        points: (sum ?? gauge ?? histogram)!.dataPoints.map(each => ({
          attributes: plainValues(each.attributes),
          ...('bucketCounts' in each
            ? { value: Number(each.count), sum: each.sum }
            : { value: Number(each.asDouble ?? each.asInt) }),
        })),
        resource: plainValues(resource.attributes),
      })),
    ),
  )
}

/** Returns what of a span contains a canary. */
function leaksOf({ name, attributes, events, resource }: ReceivedSpan): string[] {
  const texts = {
    name,
    ...attributes,
    ...Object.fromEntries(events.map(each => [each.name, each.attributes])),
    ...resource,
  }
  return Object.entries(texts).flatMap(([key, value]) => {
    const text = JSON.stringify(value)
    return CANARIES.some(each => text.includes(each)) ? `${name}: ${key}: ${text}` : []
  })
}

const READERS = {
  '/v1/traces': (body: unknown, collector: Collector, keeps: boolean) => {
    const read = Body.safeParse(body)
    if (!read.success) return void collector.problems.push(z.prettifyError(read.error))
    const spans = readSpans(read.data)
    collector.count += spans.length
    collector.leaks.push(...spans.flatMap(leaksOf))
    if (keeps) collector.spans.push(...spans)
  },
  '/v1/metrics': (body: unknown, { metrics, problems }: Collector) => {
    const read = MetricsBody.safeParse(body)
    if (!read.success) return void problems.push(z.prettifyError(read.error))
    const received = readMetrics(read.data)
    metrics.set(received[0].resource['service.instance.id'], received)
  },
}

/**
 * A collector of traces and metrics on 127.0.0.1 that checks the bodies that it receives, and spans for canaries.
 * @param keeps whether it keeps them
 */
export async function startCollector({ keeps = true } = {}): Promise<Collector> {
  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('data', chunk => chunks.push(chunk))
    request.on('end', () => {
      const text = Buffer.concat(chunks).toString('utf8')
      if (keeps) collector.bodies.push(text)
      if (keeps) collector.headers.push(request.headers)
      if (collector.hangs) return
      if (collector.status !== null && collector.refuses(text))
        return void response.writeHead(collector.status).end('no')
      if (request.method !== 'POST' || !(request.url && request.url in READERS))
        collector.problems.push(`${request.method} ${request.url}`)
      if (request.headers['content-type'] !== 'application/json') collector.problems.push('no JSON')
      else READERS[request.url as keyof typeof READERS]?.(JSON.parse(text), collector, keeps)
      response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const collector: Collector = {
    url: `http://127.0.0.1:${port}`,
    spans: [],
    metrics: new Map(),
    bodies: [],
    headers: [],
    hangs: false,
    status: null,
    refuses: () => true,
    problems: [],
    count: 0,
    leaks: [],
    named: name => collector.spans.filter(span => span.name === name),
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
  return collector
}
