import type { OTLPMetricExporter } from '@opentelemetry/exporter-metrics-otlp-http'
import type { MetricObjectWithValues, MetricValue } from 'prom-client'
import { systemClock } from './clock.ts'
import { settledWithin } from './event-loop.ts'
import { attributeOf, instrumentOf } from './instruments.ts'
import type { Logger } from './log.ts'
import { registry, telemetryDropped } from './metrics.ts'

/** The metrics of /metrics in the form of the OTLP exporter, whose numbers for kinds of points these are. */

type Time = [seconds: number, nanoseconds: number]

const CUMULATIVE = 1
const POINTS = { histogram: 0, gauge: 2, sum: 3 } as const

type Labels = Record<string, string | number>
type Value = MetricValue<string> & { metricName?: string; labels: Labels }

const attributesOf = (labels: Labels) =>
  Object.fromEntries(Object.entries(labels).map(([label, value]) => [attributeOf(label), value]))

/** Histograms by labels: prom-client lists their buckets, sums and counts one by one, and counts buckets cumulatively. */
function histogramsOf(name: string, values: readonly Value[]) {
  const series = new Map<
    string,
    { labels: Labels; boundaries: number[]; counts: number[]; sum: number; count: number }
  >()
  for (const { value, metricName, labels: given } of values) {
    const { le, ...labels } = given
    const key = JSON.stringify(labels)
    const known = series.get(key) ?? { labels, boundaries: [], counts: [], sum: 0, count: 0 }
    series.set(key, known)
    if (metricName === `${name}_sum`) known.sum = value
    else if (metricName === `${name}_count`) known.count = value
    else {
      known.counts.push(value)
      if (le !== '+Inf') known.boundaries.push(Number(le))
    }
  }
  return [...series.values()].map(({ labels, boundaries, counts, sum, count }) => ({
    attributes: attributesOf(labels),
    value: {
      buckets: { boundaries, counts: counts.map((total, index) => total - (counts[index - 1] ?? 0)) },
      sum,
      count,
    },
  }))
}

function dataOf(
  { name: shown, help, type, values }: MetricObjectWithValues<MetricValue<string>>,
  times: { startTime: Time; endTime: Time },
) {
  const { name, unit } = instrumentOf(shown)
  const common = { descriptor: { name, description: help, unit, valueType: 1 }, aggregationTemporality: CUMULATIVE }
  // Delays of the event loop are NaN until they are measured, which JSON cannot express.
  const all = (values as Value[]).filter(({ value }) => Number.isFinite(value))
  const points = all.map(({ value, labels }) => ({ ...times, attributes: attributesOf(labels), value }))
  if (String(type) === 'histogram')
    return {
      ...common,
      dataPointType: POINTS.histogram,
      dataPoints: histogramsOf(shown, all).map(point => ({ ...times, ...point })),
    }
  if (String(type) === 'counter') return { ...common, dataPointType: POINTS.sum, isMonotonic: true, dataPoints: points }
  return { ...common, dataPointType: POINTS.gauge, dataPoints: points }
}

/** Returns milliseconds as the exporters take times. */
export const hrTime = (ms: number): Time => [Math.floor(ms / 1000), Math.floor((ms % 1000) * 1e6)]

/** Start of the process, from which counters count. */
const startTime = hrTime(performance.timeOrigin)

/** Reads all metrics of the process that have values. */
async function readMetrics() {
  const times = { startTime, endTime: hrTime(systemClock.now().getTime()) }
  const metrics = await registry.getMetricsAsJSON()
  return metrics.map(metric => dataOf(metric, times)).filter(({ dataPoints }) => dataPoints.length > 0)
}

type ResourceMetrics = Parameters<OTLPMetricExporter['export']>[0]

type ExportOptions = {
  exporter: Pick<OTLPMetricExporter, 'export' | 'shutdown'>
  scope: {
    resource: ResourceMetrics['resource']
    instrumentationScope: ResourceMetrics['scopeMetrics'][number]['scope']
  }
  intervalMs: number
  timeoutMs: number
  log: Logger
}

/** Exports the metrics of the process in an interval, and once more at its end. */
export class MetricsExport {
  readonly #options: ExportOptions
  readonly #timer: NodeJS.Timeout
  #exporting: Promise<void> | null = null
  #isFailing = false

  constructor(options: ExportOptions) {
    this.#options = options
    this.#timer = setInterval(() => void this.#export(), options.intervalMs).unref()
  }

  /** Exports the last values, for at most `limitMs`. */
  async close(limitMs: number): Promise<void> {
    clearInterval(this.#timer)
    const deadline = performance.now() + limitMs
    await settledWithin(limitMs, Promise.resolve(this.#exporting))
    await settledWithin(Math.max(0, deadline - performance.now()), this.#export())
    await settledWithin(Math.max(100, deadline - performance.now()), this.#options.exporter.shutdown()).catch(() => {})
  }

  #export(): Promise<void> {
    this.#exporting ??= this.#exportOnce().finally(() => {
      this.#exporting = null
    })
    return this.#exporting
  }

  async #exportOnce(): Promise<void> {
    const { exporter, scope, timeoutMs, log } = this.#options
    const { resource, instrumentationScope } = scope
    const isExported = await settledWithin(
      timeoutMs + 1000,
      readMetrics().then(
        metrics =>
          new Promise<boolean>(resolve => {
            const data = { resource, scopeMetrics: [{ scope: instrumentationScope, metrics }] } as unknown
            exporter.export(data as ResourceMetrics, ({ code }) => resolve(code === 0))
          }),
      ),
    ).catch(() => false)
    if (!isExported) telemetryDropped.inc({ reason: 'metrics' })
    // Once for each time that the collector is away.
    if (!isExported && !this.#isFailing) log.warn('export of metrics failed')
    this.#isFailing = !isExported
  }
}
